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
local out, size = { struct.pack('<I8', now), 0, 0, 0, 0, 0, 0 }, 1
local peek = message[4] == 1
local decide_any

-- Read at once where no request can change what a later one reads. What is not there may be a key of another type: it is asked for alone.
local texts = message[5] == 1 and call('MGET', unpack(KEYS)) or {}

local codes, before, after, shows = { 0, 0, 0 }, { 0, 0, 0 }, { 0, 0, 0 }, {}
local first_key, at = 0, 6
while message[at] do
  local requests, charges = message[at], message[at + 1]
  local request, usually = {}, not peek
  for i = 1, charges do
    local d = form_at(message[at + 1 + i], forms, now, hold_ms)
    request[i] = d
    usually = usually and d[2] == 1
  end

  for _ = 1, requests do
    local decided = false
    if usually and charges == 1 then
      local d, key = request[1], KEYS[first_key + 1]
      local text = texts[first_key + 1] or pcall_('GET', key)
      if type(text) ~= 'table' then
        local code, written, shown = usual(d, text, now)
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
      local admitted, logs = true, false
      for i = 1, charges do
        local d = request[i]
        local text = texts[first_key + i] or pcall_('GET', KEYS[first_key + i])
        decided = type(text) ~= 'table'
        if decided then
          local code, written, shown = usual(d, text, now)
          codes[i], before[i], after[i], shows[i] = code, text, written, shown
          admitted = admitted and (code == 1 or d[3] == 1)
          logs = logs or d[1] == 6
          -- What a log shows of a charge that is not made is left to the general code.
          decided = code and not (logs and (code == 0 or not admitted))
        end
        if not decided then
          break
        end
      end
      if decided then
        for i = 1, charges do
          local code, written = codes[i], after[i]
          if written and (admitted or code == 0) then
            call('SET', KEYS[first_key + i], written, 'PX', request[i][8])
            out[size + 1], out[size + 2] = code == 1 and '\1' or '\0', shows[i] or written
          elseif before[i] then
            out[size + 1], out[size + 2] = code == 1 and '\2' or '\0', before[i]
          else
            out[size + 1], out[size + 2] = code == 1 and '\4' or '\3', ''
          end
          size = size + 2
        end
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
return table.concat(out, '', 1, size)
