-- decide_one.lua for the packed layout: the same arguments and reply. Counters are read one by one, each where it stands.
--
-- The usual case of one charge comes first, before functions are made that it does not need.

local call, charges = redis.call, keys_given
local now, hold_ms, peek = 0, 0, 0
if ARGV[charges + 1] then
  now, hold_ms, peek = cmsgpack.unpack(ARGV[charges + 1])
end
if now == 0 then
  -- Read once: some servers let it advance inside a script.
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end

if charges == 1 then
  local d, key = { cmsgpack.unpack(ARGV[1]) }, KEYS[1]
  if d[1] == 3 and not place_window(d, now, hold_ms) then
    return struct.pack('<I8', now)
  end
  local p = d[2]
  if p > 0 and peek == 0 and d[p + 6] == 0 and (d[1] == 1 or d[1] == 3 or d[1] == 4) then
    local epoch, tail = epoch_of(d, p, now)
    local hash, field = string.sub(key, 1, -9) .. tail, string.sub(key, -8)
    local value = redis.pcall('HGET', hash, field)
    if value and type(value) ~= 'table' then
      local code, written, shown = quick(d, value, now, p, epoch)
      if code then
        if written then
          call('HSET', hash, field, written)
        end
        return struct.pack('<I8', now) .. (code == 1 and '\1' or '\0') .. shown
      end
    end
  end
end
