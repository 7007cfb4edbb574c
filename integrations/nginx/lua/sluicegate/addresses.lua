-- Addresses as keys: one text per client, from nginx's $binary_remote_addr.

local bit = require "bit"

local byte, format = string.byte, string.format

local MEMO_MAX = 10000 -- addresses whose keys are kept by a worker; a full memo is emptied

local M = {}

local function cut(bytes, bits)
  local whole = math.floor(bits / 8)
  local kept = { byte(bytes, 1, #bytes) }
  for i = whole + 1, #kept do
    local left = bits - (i - 1) * 8
    kept[i] = left > 0 and bit.band(kept[i], bit.lshift(0xff, 8 - left) % 256) or 0
  end
  return kept
end

local function v6_text(bytes)
  local groups = {}
  for i = 1, 8 do
    groups[i] = bytes[2 * i - 1] * 256 + bytes[2 * i]
  end
  -- The first of the longest runs of zeros is left out (RFC 5952).
  local best_at, best, at, run = 0, 1, 0, 0
  for i = 1, 8 do
    if groups[i] == 0 then
      if run == 0 then
        at = i
      end
      run = run + 1
      if run > best then
        best_at, best = at, run
      end
    else
      run = 0
    end
  end
  local head, tail = {}, {}
  for i = 1, 8 do
    if best_at == 0 or i < best_at then
      head[#head + 1] = format("%x", groups[i])
    elseif i >= best_at + best then
      tail[#tail + 1] = format("%x", groups[i])
    end
  end
  if best_at == 0 then
    return table.concat(head, ":")
  end
  return table.concat(head, ":") .. "::" .. table.concat(tail, ":")
end

local MAPPED = string.rep("\0", 10) .. "\255\255"

local function key_of(bytes, v4_bits, v6_bits)
  if #bytes == 16 and bytes:sub(1, 12) == MAPPED then
    bytes = bytes:sub(13)
  end
  if #bytes == 4 then
    local text = table.concat(cut(bytes, v4_bits), ".")
    return v4_bits < 32 and text .. "/" .. v4_bits or text
  elseif #bytes == 16 then
    local text = v6_text(cut(bytes, v6_bits))
    return v6_bits < 128 and text .. "/" .. v6_bits or text
  end
  return nil
end

-- A function from an address of 4 or 16 bytes to its key; nil for anything else (a Unix socket has none).
function M.keys(v4_bits, v6_bits)
  local memo, count = {}, 0
  return function(bytes)
    local key = memo[bytes]
    if key == nil then
      key = key_of(bytes, v4_bits, v6_bits) or false
      if count >= MEMO_MAX then
        memo, count = {}, 0
      end
      memo[bytes], count = key, count + 1
    end
    return key or nil
  end
end

return M
