-- Decides many independent requests in order, each of which charges several counters or none.
--
-- KEYS: one per charge, in order of requests and charges. ARGV: see call.lua; after its own numbers `message` holds
--   1 for a peek  1 where all keys differ and their texts are short  and then groups: requests, charges of each, a form's place per charge
-- A group is a run of requests that make the same charges.
--
-- Reply: now in eight bytes, and a record per charge: a byte that says what it came to, and the counter's text as it stands then
-- (of a sliding log, total and time).
--   0 refused  1 charged  2 would pass and was not charged  3 refused, 4 would pass, and there is no counter
--   5 the whole request could not be decided: a byte and so many bytes of error text, in place of all its records
-- now alone: a calendar did not reach now, and nothing was done.
--
-- Per request every counter is read and checked before anything is written; a key that cannot be read fails its own request only.
-- What usual.lua does not decide goes to `decide_any`, which is made only then: making its functions costs more than a decision.

local pcall_ = redis.pcall
local out, size = { struct.pack('<I8', now) }, 1
local peek = message[4] == 1
local deciders, decide_any = {}, nil

-- Read at once where no request can change what a later one reads. What is not there may be a key of another type: it is asked for alone.
local texts = message[5] == 1 and call('MGET', unpack(KEYS)) or {}

local first_key, at = 0, 6
while message[at] do
  local requests, charges = message[at], message[at + 1]
  local request, usually = {}, not peek
  for i = 1, charges do
    local d = form_at(message[at + 1 + i], forms, now, hold_ms)
    request[i] = d
    if d[2] == 0 then
      usually = false
    elseif usually and not deciders[d[1]] then
      deciders[d[1]] = usual(d[1], now)
    end
  end

  for _ = 1, requests do
    local decided = false
    if usually and charges == 1 then
      local d, key = request[1], KEYS[first_key + 1]
      local text = texts[first_key + 1] or pcall_('GET', key)
      if type(text) ~= 'table' then
        local code, written, shown = deciders[d[1]](d, text)
        if code then
          if written then
            call('SET', key, written, 'PX', d[8])
          end
          out[size + 1], out[size + 2] = code == 1 and '\1' or '\0', shown or written or text
          size = size + 2
          decided = true
        end
      end
    elseif usually then
      local codes, before, after, shows, admitted = {}, {}, {}, {}, true
      for i = 1, charges do
        local d = request[i]
        local text = texts[first_key + i] or pcall_('GET', KEYS[first_key + i])
        decided = type(text) ~= 'table'
        if decided then
          codes[i], after[i], shows[i] = deciders[d[1]](d, text)
          before[i] = text
          -- What a log shows of a charge that is not made is left to the general code.
          decided = codes[i] == 1 or (codes[i] == 0 and d[1] ~= 6)
          admitted = admitted and (codes[i] == 1 or d[3] == 1)
        end
        if not decided then
          break
        end
      end
      for i = 1, decided and not admitted and charges or 0 do
        decided = decided and request[i][1] ~= 6
      end
      for i = 1, decided and charges or 0 do
        local code, shown = codes[i], before[i]
        if after[i] and (admitted or code == 0) then
          call('SET', KEYS[first_key + i], after[i], 'PX', request[i][8])
          shown = shows[i] or after[i]
        elseif code == 1 then
          code = 2
        end
        out[size + 1], out[size + 2] = string.char(shown and code or code == 0 and 3 or 4), shown or ''
        size = size + 2
      end
    end
    if not decided then
      decide_any = decide_any or general(now, hold_ms, peek)
      size = decide_any(request, first_key, out, size)
    end
    first_key = first_key + charges
  end
  at = at + 2 + charges
end
return table.concat(out)
