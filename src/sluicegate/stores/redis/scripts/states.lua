-- Counters as they are kept: one string of fixed-width integers, least byte first.
--
--   numbers of the quota, birth, state
--
-- The numbers are those the state was written under, so that a change of them is seen; the birth is the time the counter began.
-- In here a state is a table with `born`, and `old`, the numbers, where those are others than the form's. An algorithm's methods never
-- change a state, they make another.

-- The text of a counter: nil and no error where there is none.
local function fetch(_, key)
  local text = pcall_('GET', key)
  if not text then
    return nil
  end
  if type(text) == 'table' then
    return nil, text.err
  end
  return text
end

-- A time to live as milliseconds, rounded up.
local function lasting(ttl_us)
  return format('%.0f', math.ceil(ttl_us / 1000) + hold_ms)
end

-- State goes in one step with its time to live, twice what it can matter.
local function store(_, key, text, ttl_us)
  call('SET', key, text, 'PX', lasting(ttl_us))
end

local function drop(_, key)
  call('DEL', key)
end

-- The packed layout has more than one place for a counter (packed_states.lua); here there is one. What `apart` says is for that.
local apart
local function misplaced()
  return false
end

local function arrive() end
