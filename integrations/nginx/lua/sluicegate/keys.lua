-- Subjects and the texts of keys, as every client of the store makes them: tests/vectors/keys.json holds examples.

local ffi = require "ffi"

ffi.cdef [[
struct evp_md_st;
const struct evp_md_st *EVP_sha256(void);
unsigned char *HMAC(const struct evp_md_st *md, const void *key, int key_len, const unsigned char *data, size_t n,
                    unsigned char *out, unsigned int *out_len);
unsigned char *SHA256(const unsigned char *data, size_t n, unsigned char *out);
]]

local crypto, byte, format, gsub, find, sub = ffi.C, string.byte, string.format, string.gsub, string.find, string.sub
local SHA256_BYTES, DIGEST_BYTES = 32, 16
local MEMO_MAX = 10000 -- subjects whose texts are kept by a worker; a full memo is emptied

local M = {}

local out = ffi.new("unsigned char[?]", SHA256_BYTES)

local function percent(char)
  return format("%%%02X", byte(char))
end

local function hex(bytes)
  return (gsub(bytes, ".", function(char)
    return format("%02x", byte(char))
  end))
end

-- `value` as it stands in a subject; `chars_max` of the rule set's document.
function M.escape(value, chars_max)
  local escaped = gsub(value, "[^%w_.~%-/:@=+,* ]", percent)
  if #escaped <= chars_max then
    return escaped
  end
  crypto.SHA256(value, #value, out)
  return "#" .. hex(ffi.string(out, SHA256_BYTES))
end

-- One part of a subject, nil where the value is not known.
function M.part(dimension, value, chars_max)
  if value == nil or value == "" then
    return nil
  end
  return gsub(dimension, "[^%w_.~%-]", percent) .. ":" .. M.escape(value, chars_max)
end

local function tag_of(subject, dimensions)
  if not find(subject, "|", 1, true) then
    return subject
  end
  for _, name in ipairs(dimensions) do
    local prefix = name .. ":"
    for part in string.gmatch(subject, "[^|]+") do
      if sub(part, 1, #prefix) == prefix then
        return part
      end
    end
  end
  return subject
end

local function digest(secret, text)
  crypto.HMAC(crypto.EVP_sha256(), secret, #secret, text, #text, out, nil)
  local encoded = ngx.encode_base64(ffi.string(out, DIGEST_BYTES), true)
  return (gsub(gsub(encoded, "+", "-"), "/", "_"))
end

-- A function from a subject to its text in a key. `secret` nil: subjects stand readable. `dimensions`: tag_dimensions.
function M.texts(secret, dimensions)
  local memo, count = {}, 0
  return function(subject)
    local text = memo[subject]
    if text then
      return text
    end
    local tag = tag_of(subject, dimensions)
    text = "{" .. (secret and digest(secret, tag) or tag) .. "}"
    if tag ~= subject then
      text = text .. ":" .. (secret and digest(secret, subject) or subject)
    end
    if count >= MEMO_MAX then
      memo, count = {}, 0
    end
    memo[subject], count = text, count + 1
    return text
  end
end

return M
