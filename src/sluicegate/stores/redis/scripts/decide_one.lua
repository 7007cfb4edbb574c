-- Decides one request, which charges one counter or several. It does what decide.lua does for many, and less of what costs time.
--
-- KEYS: one per charge. ARGV: the form of each charge, and where these are not 0, one more of packed numbers:
--   time of the call instead of the server's  milliseconds added to every time to live  1 for a peek
-- Reply: as decide.lua's.
--
-- One charge is written out apart from several: it makes no table but its form's.

local call, pcall_, charges = redis.call, redis.pcall, #KEYS
local now, hold_ms, peek = 0, 0, 0
if ARGV[charges + 1] then
  now, hold_ms, peek = cmsgpack.unpack(ARGV[charges + 1])
end
if now == 0 then
  -- Read once: some servers let it advance inside a script.
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end

local request = {}
if charges == 1 then
  local d, key = { cmsgpack.unpack(ARGV[1]) }, KEYS[1]
  request[1] = d
  if d[1] == 3 and not place_window(d, now, hold_ms) then
    return struct.pack('<I8', now)
  end
  if d[2] == 1 and peek == 0 then
    local text = pcall_('GET', key)
    if type(text) ~= 'table' then
      local code, written, shown = usual(d, text, now)
      if code then
        if written then
          call('SET', key, written, 'PX', d[8])
        end
        return struct.pack('<I8', now) .. (code == 1 and '\1' or '\0') .. (shown or written or text)
      end
    end
  end
else
  -- Lua's stack holds 8,000 keys; a file has at most 5,000 rules.
  local usually, admitted, charged, logs = peek == 0 and charges > 0 and charges < 7000, true, true, false
  for i = 1, charges do
    local d = { cmsgpack.unpack(ARGV[i]) }
    request[i] = d
    if d[1] == 3 and not place_window(d, now, hold_ms) then
      return struct.pack('<I8', now)
    end
    usually = usually and d[2] == 1
  end
  local codes, before, after, shows = { 0, 0, 0 }, usually and call('MGET', unpack(KEYS)), { 0, 0, 0 }, {}
  for i = 1, usually and charges or 0 do
    local d = request[i]
    -- What is not there may be a key of another type: it is asked for alone.
    local text = before[i] or pcall_('GET', KEYS[i])
    local code, written, shown
    if type(text) ~= 'table' then
      code, written, shown = usual(d, text, now)
      codes[i], after[i] = code, written
    end
    if not code then
      usually = false
      break
    elseif code == 0 then
      charged = false
      admitted = admitted and d[3] == 1
    end
    if shown then
      logs, shows[i] = true, shown
    end
  end
  if usually and charged then
    for i = 1, charges do
      call('SET', KEYS[i], after[i], 'PX', request[i][8])
      if shows[i] then
        after[i] = shows[i]
      end
    end
    return struct.pack('<I8', now) .. '\1' .. table.concat(after, '\1', 1, charges)
  elseif usually and not logs then
    -- What a log shows of a charge that is not made is left to the general code.
    local out = { struct.pack('<I8', now) }
    for i = 1, charges do
      local code, written = codes[i], after[i]
      if written and (admitted or code == 0) then
        call('SET', KEYS[i], written, 'PX', request[i][8])
        out[2 * i], out[2 * i + 1] = code == 1 and '\1' or '\0', written
      elseif before[i] then
        out[2 * i], out[2 * i + 1] = code == 1 and '\2' or '\0', before[i]
      else
        out[2 * i], out[2 * i + 1] = code == 1 and '\4' or '\3', ''
      end
    end
    return table.concat(out)
  end
end

local out = { struct.pack('<I8', now) }
general(now, hold_ms, peek == 1)(request, 0, out, 1)
return table.concat(out)
