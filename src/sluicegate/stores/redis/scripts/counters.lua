-- What is done to counters one by one, each on its own: by its receipt, or by an operator.

-- The counter of a key under the numbers of `d`, an error where it cannot be read, and the form that it goes by. The state is nil where there is none.
local function current(d, algorithm, key)
  local state, err = algorithm.read(d, key)
  d = form_of(d, state)
  return renewed(d, algorithm, key, state), err, d
end
