-- Forgets counters, those that cannot be read too.
--
-- KEYS: one per counter, and behind all of them, where a layout before this one may have them, their keys there. ARGV[1] of packed numbers:
--   time of the call instead of the server's, 0 for that  and per counter 1 where it may be in hashes, and 2 for those of the layout before
-- Reply: how many there were.

local call, try, sub, floor = redis.call, redis.pcall, string.sub, math.floor
local message = { cmsgpack.unpack(ARGV[1]) }
if type(message[1]) == 'table' then
  message = message[1]
end
local now, count, forgotten = message[1], #message - 1, 0
if now == 0 then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end

local function gone(key)
  local base, field, found = sub(key, 1, -9), sub(key, -8), 0
  for power = 3, 7 do
    local seconds = 10 ^ power
    for epoch = floor(now / (seconds * 1000000)) - 1, floor(now / (seconds * 1000000)) + 1 do
      local hash = base .. seconds .. ':' .. epoch
      local removed = try('HDEL', hash, field)
      -- A key of another type keeps everybody in it from being decided.
      found = found + (type(removed) == 'table' and call('UNLINK', hash) or removed)
    end
  end
  return found
end

for i = 1, count do
  local how, found = message[i + 1], call('UNLINK', KEYS[i])
  if how % 2 == 1 then
    found = found + gone(KEYS[i])
  end
  if KEYS[count + i] and KEYS[count + i] ~= KEYS[i] then
    found = found + call('UNLINK', KEYS[count + i])
    if how >= 2 then
      found = found + gone(KEYS[count + i])
    end
  end
  forgotten = forgotten + (found > 0 and 1 or 0)
end
return forgotten
