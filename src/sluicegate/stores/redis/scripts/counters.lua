-- What is done to counters one by one, each on its own: by its receipt, or by an operator.

local function algorithm_of(d)
  if d[1] == 1 or d[1] == 2 then
    return make_bucket(d[1] == 2)
  elseif d[1] == 3 then
    return make_fixed()
  elseif d[1] == 4 then
    return make_estimate()
  elseif d[1] == 5 then
    return make_strict()
  elseif d[1] == 6 then
    return make_log()
  end
end

-- The counter of a key under the numbers of `d`, to which it is changed where it has others. The state is nil where there is none, or
-- with the text of an error where it cannot be read.
local function current(d, algorithm, key)
  local state, err = algorithm.read(d, key)
  if state and state.old then
    state = algorithm.carry(d, state)
    if state then
      algorithm.write(d, key, state)
    else
      call('DEL', key)
    end
  end
  return state, err
end
