-- Gives back what is used of counters, whoever used it, each on its own.
--
-- KEYS: one per grant. ARGV: see call.lua; after its own numbers `message` holds per grant its form's place, whose cost is what to give back at most.
-- Reply: now in eight bytes, per grant the tokens given back in five, the text of the last error. A counter that is gone gets nothing back and is not made.
-- now alone: a calendar did not reach now, and nothing was done.

local parts, problem = { struct.pack('<I8', now) }, ''
for i = 1, keys_given do
  local key, given = KEYS[i], 0
  local d = form_at(message[3 + i], forms, now, hold_ms)
  local algorithm = algorithm_of(d[1])
  if algorithm then
    local state, err
    state, err, d = current(d, algorithm, key)
    problem = err or problem
    if state then
      local after
      after, given = algorithm.grant(d, state)
      if given > 0 then
        algorithm.write(d, key, after)
      end
    end
  end
  parts[#parts + 1] = struct.pack('<I5', given)
end
return table.concat(parts) .. problem
