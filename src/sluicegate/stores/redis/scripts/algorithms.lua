-- The methods of an algorithm by its number, and what each first look at a counter does.

local algorithms = {}

-- The algorithm's methods, made when the call first needs them; nil for a ban, which has no counter.
local function algorithm_of(code)
  local found = algorithms[code]
  if not found and code > 0 then
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

-- The state under the numbers of `d`; a counter that has others is changed to them, also by a peek: time passes under the new ones
-- from here on. nil where nothing is left of it.
local function renewed(d, algorithm, key, state)
  if state and state.old then
    state = algorithm.carry(d, state)
    if state then
      algorithm.write(d, key, state)
    else
      drop(d, key)
    end
  end
  return state
end
