-- The Redis of the counters: the script by its digest on pooled connections, and the secret under which subjects become digests.

local ffi = require "ffi"

require "sluicegate.keys" -- declares SHA256

local has_debian, redis = pcall(require, "nginx.redis") -- Debian's name of it
if not has_debian then
  redis = require "resty.redis"
end

local SECRET_KEY = "rl1:key_secret"
local POOL_IDLE_MS, POOL_SIZE = 60000, 64

local M = {}

local function connect(settings)
  local red = redis:new()
  red:set_timeout(settings.timeout_ms)
  local pool = { pool = "sluicegate", pool_size = POOL_SIZE }
  local ok, err
  if settings.path then
    ok, err = red:connect("unix:" .. settings.path, pool)
  else
    ok, err = red:connect(settings.host, settings.port, pool)
  end
  if not ok then
    return nil, err
  end
  if red:get_reused_times() == 0 then
    if settings.password then
      if settings.user then
        ok, err = red:auth(settings.user, settings.password)
      else
        ok, err = red:auth(settings.password)
      end
    end
    if ok and settings.db then
      ok, err = red:select(settings.db)
    end
    if not ok then
      red:close()
      return nil, err
    end
  end
  return red
end

-- A reply, or nil and an error. A connection is used again unless its state is not known.
local function call(settings, command)
  local red, err = connect(settings)
  if not red then
    return nil, err
  end
  local reply
  reply, err = command(red)
  if reply == nil then
    red:close()
    return nil, err
  end
  red:set_keepalive(POOL_IDLE_MS, POOL_SIZE)
  return reply, err
end

-- The script's reply for these keys and forms, a text; or nil and an error.
function M.decide(settings, script, charges)
  local arguments = {}
  for i, charge in ipairs(charges) do
    arguments[i] = charge.key
    arguments[#charges + i] = charge.counter.form
  end
  local reply, err = call(settings, function(red)
    local reply, err = red:evalsha(script.digest, #charges, unpack(arguments))
    if not reply and err and string.sub(err, 1, 8) == "NOSCRIPT" then
      reply, err = red:eval(script.text, #charges, unpack(arguments))
    end
    return reply, err
  end)
  if reply then
    return reply
  end
  return nil, err or "no reply"
end

local function fingerprint(secret)
  local text, out = "sluicegate key_secret " .. secret, ffi.new("unsigned char[32]")
  ffi.C.SHA256(text, #text, out)
  return (string.gsub(ffi.string(out, 8), ".", function(char)
    return string.format("%02x", string.byte(char))
  end))
end

-- The secret of this store; nil and an error where it cannot be known. `settings.key_secret`: the one that the operator gave.
function M.secret(settings)
  local kept, err = call(settings, function(red)
    return red:get(SECRET_KEY)
  end)
  if not kept then
    return nil, err
  elseif kept == ngx.null then
    return nil, "no process of sluicegate has used this Redis yet: it holds no " .. SECRET_KEY
  end
  local made = string.match(kept, "^made:(.+)$")
  if made then
    return made
  end
  local given = string.match(kept, "^given:(%x+)$")
  if not given then
    return nil, SECRET_KEY .. " holds no secret of this program"
  elseif not settings.key_secret or fingerprint(settings.key_secret) ~= given then
    return nil, "this Redis is used with another key_secret than the one given here"
  end
  return settings.key_secret
end

return M
