-- Gives charges back by their receipts, each on its own.
--
-- KEYS: one per receipt. ARGV[1], packed: {now or 0, milliseconds added to every time to live (0), definitions, receipts}; a
-- receipt is {definition, cost, cost in microseconds and remainder (buckets), time of the charge}.
-- Reply, packed: {now, number of counters changed, first error or ""}. A counter that is gone, or was made after the charge, gets
-- nothing back; {now} alone: a calendar did not reach now, and nothing was done.

local definitions, receipts = message[3], message[4]
for i = 1, #definitions do
  if definitions[i][1] == 3 and not place_window(definitions[i]) then
    return cmsgpack.pack({ now })
  end
end

local changed, problem = 0, ''
for i = 1, #receipts do
  local receipt, key = receipts[i], KEYS[i]
  local d = definitions[receipt[1]]
  local algorithm
  if d[1] == 1 or d[1] == 2 then
    algorithm = make_bucket(d[1] == 2)
  elseif d[1] == 3 then
    algorithm = make_fixed()
  elseif d[1] == 4 then
    algorithm = make_estimate()
  elseif d[1] == 5 then
    algorithm = make_strict()
  elseif d[1] == 6 then
    algorithm = make_log()
  end
  if algorithm then
    local state, err = algorithm.read(d, key)
    if err then
      problem = err
    elseif state then
      if state.old then
        state = algorithm.carry(d, state)
        if state then
          algorithm.write(d, key, state)
        else
          call('DEL', key)
        end
      end
      if state and state.born <= receipt[5] then
        local after = algorithm.refund(d, state, receipt[2], receipt[3], receipt[4], receipt[5])
        if after ~= state then
          algorithm.write(d, key, after)
          changed = changed + 1
        end
      end
    end
  end
end
return cmsgpack.pack({ now, changed, problem })
