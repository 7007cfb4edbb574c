-- Gives charges back by their receipts, each on its own.
--
-- KEYS: one per receipt. ARGV: see call.lua; after its own numbers `message` holds per receipt its form's place, the time of the charge, and
-- start and end of the calendar window of that time (0 for other counters).
-- Reply: now in eight bytes, the number of counters changed in four, the text of the last error. A counter that is gone, or was made after the charge, gets
-- nothing back. now alone: a calendar did not reach now, and nothing was done.

local changed, problem = 0, ''
for i = 1, keys_given do
  local key, charged_us = KEYS[i], message[4 * i + 1]
  local d = form_at(message[4 * i], forms, now, hold_ms)
  local algorithm = algorithm_of(d[1])
  if algorithm then
    local state, err
    state, err, d = current(d, algorithm, key)
    problem = err or problem
    if state and state.born <= charged_us then
      local after = algorithm.refund(d, state, charged_us, message[4 * i + 2], message[4 * i + 3])
      if after ~= state then
        algorithm.write(d, key, after)
        changed = changed + 1
      end
    end
  end
end
return struct.pack('<I8I4', now, changed) .. problem
