-- Counters that are kept as one text.
--
--   <numbers>|<born> <state...>     for instance 100/1/600000|1764499998000000 1764499999123456 0
--
-- `numbers` are those the state was written under, so that a change of them is seen; `born` is the time the counter began.
-- A state is a table with `born`; an algorithm's methods never change one, they make another.

-- The text of a counter: nil and no error where there is none.
local function fetch(key)
  local text = pcall_('GET', key)
  if not text then
    return nil
  end
  if type(text) == 'table' then
    return nil, text.err
  end
  return text
end

-- Numbers and state go in one step with the time to live, twice what the state can matter, in milliseconds rounded up.
local function store(key, text, ttl_us)
  call('SET', key, text, 'PX', format('%.0f', math.ceil(ttl_us / 1000) + hold_ms))
end

local function numbers_of(text)
  local numbers = {}
  for number in string.gmatch(text, '%-?%d+') do
    number = tonumber(number)
    if number >= EXACT or number <= -EXACT then
      return {}
    end
    numbers[#numbers + 1] = number
  end
  return numbers
end

-- The old numbers and the state in a text that was written under other numbers than the definition's.
local function split(text)
  local old, state = match(text, '^([%d/]+)|([%d %-]+)$')
  if not old then
    return nil
  end
  return numbers_of(old), numbers_of(state)
end

local UNREADABLE = 'UNREADABLE the key holds something else than a counter'
