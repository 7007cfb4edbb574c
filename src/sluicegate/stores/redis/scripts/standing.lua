-- Counters whose own numbers stand (d[5] is 3): those they were written with, whatever the form says. The form's are for one that is not there.

-- The form by which a counter is decided, and nothing to carry over.
local function form_of(d, state)
  if d[5] ~= 3 or not state or not state.old then
    return d
  end
  local own, old = {}, state.old
  for name, value in pairs(d) do
    own[name] = value
  end
  own[6] = old[1]
  if d[1] == 1 then
    own[9], own[10] = old[2], old[3]
    own[11], own[12] = divided(old[1], old[3], old[2])
    own[13], own[14] = -1, 0
    if d[7] <= old[1] then
      own[13], own[14] = divided(d[7], old[3], old[2])
    end
  end
  state.old = nil
  return own
end
