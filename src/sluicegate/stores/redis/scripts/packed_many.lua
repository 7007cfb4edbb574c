-- decide.lua for the packed layout: the same arguments and reply. Counters are read one by one, each where it stands.

local out, size = { struct.pack('<I8', now), 0, 0, 0, 0, 0, 0 }, 1
local peek = message[4] == 1
local decide_any

local texts, places, codes, after, shows = {}, {}, { 0, 0, 0 }, { 0, 0, 0 }, {}
local first_key, at = 0, 6
while message[at] do
  local requests, charges = message[at], message[at + 1]
  local request, usually = {}, not peek
  for i = 1, charges do
    local d = form_at(message[at + 1 + i], forms, now, hold_ms)
    request[i] = d
    usually = usually and d[2] > 0
  end

  local quickly = usually
  for i = 1, charges do
    local d = request[i]
    quickly = quickly and d[d[2] + 6] == 0 and (d[1] == 1 or d[1] == 3 or d[1] == 4)
  end

  for _ = 1, requests do
    local decided, admitted, logs = usually, true, false
    -- A request that is refused where it has several charges is told at length.
    local passed = quickly
    for i = 1, quickly and charges or 0 do
      local d, key = request[i], KEYS[first_key + i]
      local p = d[2]
      local epoch, tail = epoch_of(d, p, now)
      local hash, field = string.sub(key, 1, -9) .. tail, string.sub(key, -8)
      local value = redis.pcall('HGET', hash, field)
      local code
      if value and type(value) ~= 'table' then
        code, after[i], shows[i] = quick(d, value, now, p, epoch)
      end
      places[i], texts[i] = hash, field
      passed = code == 1 or (code and charges == 1)
      if not passed then
        break
      end
    end
    if passed then
      for i = 1, charges do
        if after[i] then
          call('HSET', places[i], texts[i], after[i])
        end
        out[size + 1], out[size + 2] = after[i] and '\1' or '\0', shows[i]
        size = size + 2
      end
    end
    for i = 1, usually and not passed and charges or 0 do
      local d, key = request[i], KEYS[first_key + i]
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
        decided = false
        break
      end
    end
    if decided and not passed then
      for i = 1, charges do
        local d, key, code, written = request[i], KEYS[first_key + i], codes[i], after[i]
        if written and (admitted or code == 0) then
          put(d, key, olds[key], written, d[8], now, hold_ms, places[i], d[d[2] + 6] == 1 or places[i] == key)
          out[size + 1], out[size + 2] = code == 1 and '\1' or '\0', shows[i] or written
        elseif texts[i] then
          out[size + 1], out[size + 2] = code == 1 and '\2' or '\0', shows[i] or texts[i]
        else
          out[size + 1], out[size + 2] = code == 1 and '\4' or '\3', ''
        end
        size = size + 2
      end
    elseif not passed then
      decide_any = decide_any or general(now, hold_ms, peek)
      size = decide_any(request, first_key, out, size)
    end
    first_key = first_key + charges
  end
  at = at + 2 + charges
end
return table.concat(out, '', 1, size)
