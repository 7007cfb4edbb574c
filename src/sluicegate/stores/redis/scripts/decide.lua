-- Decides many independent requests in order, each of which charges several counters or none.
--
-- KEYS: one per charge, in order of requests and charges. ARGV[1], packed:
--   {now or 0 (read the server's time), milliseconds added to every time to live (0), 1 for a peek, definitions, requests}
-- A request is a flat array of four numbers per charge: definition, cost, and the cost in microseconds and remainder of a bucket
-- (microseconds are -1 where it is above the capacity).
-- Reply, packed: {now, answers}; an answer is an error as text, or {admitted, charge, charge, ...} with per charge
-- {code, state...}; code 0 refused, 1 charged, 2 would pass and was not charged. {now} alone: a calendar did not reach now, and
-- nothing was done.
--
-- Per request every counter is read and checked before anything is written; a key that cannot be read fails its own request only.
--
-- `decide_buckets` is the usual case written out: token buckets under unchanged numbers, with nothing to write on a refusal. What
-- else there is goes to `decide_any`, which is made only then: making its functions costs about as much as a decision.

local peek, definitions, requests = message[3] == 1, message[4], message[5]
local decide_any
for i = 1, #definitions do
  if definitions[i][1] == 3 then
    local place_window
    decide_any, place_window = general(peek, definitions)
    for j = i, #definitions do
      if definitions[j][1] == 3 and not place_window(definitions[j]) then
        return cmsgpack.pack({ now })
      end
    end
    break
  end
end

-- The answer, or nil where decide_any has to look; nothing was written then.
local function decide_buckets(request, first_key)
  local answer, texts, admitted = { 1 }, {}, true
  for at = 1, #request, 4 do
    local d = definitions[request[at]]
    if d[1] ~= 1 then
      return nil
    end
    local place = (at + 3) / 4
    local born, us, rem
    local text = pcall_('GET', KEYS[first_key + place])
    if text then
      local numbers = d[2]
      if type(text) == 'table' or sub(text, 1, #numbers) ~= numbers then
        return nil
      end
      born, us, rem = match(text, '^(%d+) (%d+) (%d+)$', #numbers + 1)
      us, rem = tonumber(us), tonumber(rem)
      if not us or us >= EXACT or rem >= d[7] or #born > 16 then
        return nil
      end
    else
      born, us = nil, now
    end
    local new_us, new_rem = us, rem or 0
    if us < now then
      new_us, new_rem = now, 0
    end
    local cost_us = request[at + 2]
    new_us, new_rem = new_us + cost_us, new_rem + request[at + 3]
    if new_rem >= d[7] then
      new_us, new_rem = new_us + 1, new_rem - d[7]
    end
    local full_us = now + d[9]
    if cost_us < 0 or request[at + 1] == 0 or us > full_us + BEHIND_US then
      return nil
    elseif new_us < full_us or (new_us == full_us and new_rem <= d[10]) then
      answer[place + 1] = { 1, new_us, new_rem }
      texts[place] = d[2] .. (born or format('%.0f', now)) .. format(' %.0f %.0f', new_us, new_rem)
    elseif d[4] == 1 or #request > 4 then
      return nil
    else
      admitted = false
      answer[place + 1] = rem and { 0, us, rem } or { 0 }
    end
  end
  if admitted then
    for place = 1, #texts do
      call('SET', KEYS[first_key + place], texts[place], 'PX', definitions[request[4 * place - 3]][14])
    end
  else
    answer[1] = definitions[request[1]][3]
  end
  return answer
end

local answers, first_key = {}, 0
for i = 1, #requests do
  local request = requests[i]
  local answer = not peek and decide_buckets(request, first_key)
  if not answer then
    decide_any = decide_any or general(peek, definitions)
    answer = decide_any(request, first_key)
  end
  answers[i] = answer
  first_key = first_key + #request / 4
end
return cmsgpack.pack({ now, answers })
