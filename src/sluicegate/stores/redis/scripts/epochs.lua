-- The epoch of now, and the end of the key of its hashes; made once per form and call.
local function epoch_of(d, p, now)
  local epoch = d[p + 8]
  if epoch == 0 then
    epoch = math.floor(now / (d[p] * 1000000))
    d[p + 8], d[p + 9] = epoch, string.format('%d:%d', d[p], epoch)
  end
  return epoch, d[p + 9]
end
