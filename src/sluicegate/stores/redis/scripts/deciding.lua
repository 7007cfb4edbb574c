-- Decides one request of any algorithms: reads and checks every counter, decides all charges, then makes all or none.
-- Returns the answer, or an error as text. `algorithm_of` makes an algorithm's methods when the call first needs them.

local algorithms = {}
local function algorithm_of(code)
  local found = algorithms[code]
  if not found then
    if code <= 2 then
      found = make_bucket(code == 2)
    elseif code == 3 then
      found = make_fixed()
    elseif code == 4 then
      found = make_estimate()
    elseif code == 5 then
      found = make_strict()
    else
      found = make_log()
    end
    algorithms[code] = found
  end
  return found
end

local function decide_any(request, first_key)
  local count = #request / 4
  local states = {}
  for i = 1, count do
    local d = definitions[request[4 * i - 3]]
    if d[1] > 0 then
      local state, err = algorithm_of(d[1]).read(d, KEYS[first_key + i])
      if err then
        return err
      end
      states[i] = state
    end
  end
  local admitted = true
  local after, passes = {}, {}
  for i = 1, count do
    local at = 4 * i
    local d, cost = definitions[request[at - 3]], request[at - 2]
    local state, key = states[i], KEYS[first_key + i]
    if d[1] == 0 then
      passes[i] = cost == 0
    else
      local algorithm = algorithm_of(d[1])
      if state and state.old then
        -- The first look after a change of numbers, also of a peek: time passes under the new ones from here on.
        state = algorithm.carry(d, state)
        if state then
          algorithm.write(d, key, state)
        else
          call('DEL', key)
        end
      end
      if cost > 0 then
        after[i] = algorithm.admit(d, state, cost, request[at - 1], request[at])
      end
      passes[i] = cost == 0 or after[i] ~= nil
      if state and not passes[i] and not peek and cost <= d[6] then
        -- A state from before a step of the clock must not keep its client out until that time comes again.
        local clamped = algorithm.clamp(d, state)
        if clamped ~= state then
          algorithm.write(d, key, clamped)
          state = clamped
        end
      end
      states[i] = state
    end
    if not passes[i] and d[3] == 0 then
      admitted = false
    end
  end
  local answer = { admitted and 1 or 0 }
  for i = 1, count do
    local at = 4 * i
    local d, cost = definitions[request[at - 3]], request[at - 2]
    local charge = {}
    if d[1] > 0 then
      local algorithm, key = algorithm_of(d[1]), KEYS[first_key + i]
      local written
      if not peek then
        if admitted then
          written = after[i]
        elseif not passes[i] and d[3] == 0 and d[4] == 1 and cost <= d[6] then
          written = algorithm.refused(d, states[i], cost, request[at - 1], request[at], key)
        end
      end
      local state = states[i]
      if written then
        algorithm.write(d, key, written)
        state = written
      end
      local needed
      if d[1] == 6 and not passes[i] and state then
        needed = state.total + cost - d[6]
      end
      charge = algorithm.show(d, state, needed)
      answer[i + 1] = { passes[i] and (written and 1 or 2) or 0, unpack(charge) }
    else
      answer[i + 1] = { passes[i] and 2 or 0 }
    end
  end
  return answer
end
