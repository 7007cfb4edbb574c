-- What is done to counters one by one, each on its own: by its receipt, or by an operator.

-- The counter of a key under the numbers of `d`. The state is nil where there is none, or with the text of an error where it cannot be read.
local function current(d, algorithm, key)
  local state, err = algorithm.read(d, key)
  return renewed(d, algorithm, key, state), err
end
