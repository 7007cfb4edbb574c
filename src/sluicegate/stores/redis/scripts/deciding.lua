-- Decides one request of any algorithms in any case: reads and checks every counter, decides all charges, then makes all or none.
-- Puts its records into `out` (see decide.lua) from `size` on and returns the new size.

local function decide_any(request, first_key, out, size)
  local count = #request
  local asked, states = request, {}
  request = {}
  for i = 1, count do
    local d = asked[i]
    request[i] = d
    if d[1] > 0 then
      local state, err = algorithm_of(d[1]).read(d, KEYS[first_key + i])
      if err then
        err = sub(err, 1, 250)
        out[size + 1], out[size + 2] = '\5', string.char(#err) .. err
        return size + 2
      end
      request[i] = form_of(d, state)
      states[i] = state
    end
  end
  local admitted = true
  local after, passes = {}, {}
  for i = 1, count do
    local d, state, key = request[i], states[i], KEYS[first_key + i]
    local cost = d[7]
    if d[1] == 0 then
      passes[i] = cost == 0
    else
      local algorithm = algorithm_of(d[1])
      state = renewed(d, algorithm, key, state)
      if cost > 0 then
        after[i] = algorithm.admit(d, state)
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
  for i = 1, count do
    local d, state = request[i], states[i]
    local written
    if d[1] > 0 and not peek then
      if admitted then
        written = after[i]
      elseif not passes[i] and d[4] == 1 then
        written = algorithm_of(d[1]).refused(d, state)
      end
      if written then
        algorithm_of(d[1]).write(d, KEYS[first_key + i], written)
        state = written
      end
    end
    local code = passes[i] and (written and 1 or 2) or 0
    if state then
      out[size + 1] = string.char(code)
      out[size + 2] = algorithm_of(d[1]).show(d, state, code == 0)
      size = size + 2
    else
      out[size + 1] = code == 0 and '\3' or '\4'
      size = size + 1
    end
  end
  return size
end
