-- The counters of the packed layout, as states.lua has those of the plain one: texts are the same, where they stand is not.

local places, apart = {}, nil

local function fetch(d, key)
  local text, place, err = look(d, key, olds[key], now)
  places[key] = place
  return text, err
end

local function lasting(ttl_us)
  return format('%.0f', math.ceil(ttl_us / 1000) + hold_ms)
end

-- What is kept under its own key stays there: leases stand beside or behind it.
local function is_apart(d, key, text)
  local p = math.abs(d[2])
  if d[p + 6] == 1 or apart ~= nil then
    return d[p + 6] == 1 or apart
  end
  return places[key] == key
end

local function store(d, key, text, ttl_us)
  put(d, key, olds[key], text, lasting(ttl_us), now, hold_ms, places[key], is_apart(d, key))
end

local function drop(d, key)
  if d[1] == 6 then
    call('DEL', key) -- a log is only there
  elseif places[key] then
    take(key, olds[key], places[key])
    places[key] = nil
  end
end

-- Whether a counter has to be written for no other reason than where it stands.
local function misplaced(d, key)
  return apart ~= nil and places[key] ~= nil and (places[key] == key) ~= is_apart(d, key)
end

-- What is read and written by its key alone (a log, the leases beside a counter) changes its name where it has that of a layout before.
local function arrive(key)
  local old = olds[key]
  if old and old ~= key and call('EXISTS', key) == 0 and call('EXISTS', old) == 1 then
    call('RENAME', old, key)
  end
end
