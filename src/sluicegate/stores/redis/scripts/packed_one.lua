-- Decides what packed_first.lua has left: several charges, and whatever is not the usual case of one.

local request, usually, admitted = {}, peek == 0 and charges > 0, true
for i = 1, charges do
  local d = { cmsgpack.unpack(ARGV[i]) }
  request[i] = d
  if d[1] == 3 and not place_window(d, now, hold_ms) then
    return struct.pack('<I8', now)
  end
  usually = usually and d[2] > 0
end
local texts, places, codes, after, shows = {}, {}, {}, {}, {}
local logs = false
for i = 1, usually and charges or 0 do
  local d, key = request[i], KEYS[i]
  local text, place, err = look(d, key, olds[key], now)
  local code, written, shown
  if not err then
    code, written, shown = usual(d, text, now)
  end
  texts[i], places[i], codes[i], after[i], shows[i] = text, place, code, written, shown
  admitted = admitted and (code == 1 or d[3] == 1)
  logs = logs or d[1] == 6
  -- What a log shows of a charge that is not made is left to the general code, where there are several.
  if not code or (charges > 1 and logs and (code == 0 or not admitted)) then
    usually = false
    break
  end
end
if usually then
  local out = struct.pack('<I8', now)
  for i = 1, charges do
    local d, key, code, written, text = request[i], KEYS[i], codes[i], after[i], texts[i]
    if written and (admitted or code == 0) then
      put(d, key, olds[key], written, d[8], now, hold_ms, places[i], d[d[2] + 6] == 1 or places[i] == key)
      out = out .. (code == 1 and '\1' or '\0') .. (shows[i] or written)
    elseif text then
      out = out .. (code == 1 and '\2' or '\0') .. (shows[i] or text)
    else
      out = out .. (code == 1 and '\4' or '\3')
    end
  end
  return out
end

local out = { struct.pack('<I8', now) }
general(now, hold_ms, peek == 1)(request, 0, out, 1)
return table.concat(out)
