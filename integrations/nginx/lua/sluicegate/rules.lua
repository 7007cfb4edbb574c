-- The rules in use by this worker, and how they are kept up to date.

local addresses = require "sluicegate.addresses"
local keys = require "sluicegate.keys"
local match = require "sluicegate.match"
local server = require "sluicegate.server"
local store = require "sluicegate.store"

local RETRY_S = 1 -- after a failure a request does not try again for so long

local M = {}

-- document, candidates (see match.lua), ip_key (see addresses.lua), text (of a subject in a key; nil while the secret is not known), closed (names of rules),
-- enforces (some rule is not in shadow)
local current
local tag, secret, failed_at

local function prepare(document)
  local methods, wanted = {}, {}
  for _, name in ipairs(document.methods) do
    methods[name] = true
  end
  document.methods = methods
  for _, name in ipairs(document.wanted_headers) do
    wanted[name] = true
  end
  for _, name in ipairs(document.identity.secrets) do
    wanted[name] = true
  end
  -- What a trusted peer states, nginx states; its client's word for it is nothing.
  for _, name in ipairs(document.identity.forwarding) do
    wanted[name] = nil
  end
  for _, name in pairs(document.identity.stated) do
    wanted[name] = nil
  end
  document.wanted = wanted
  local closed, enforces = {}, false
  for _, rule in ipairs(document.rules) do
    if rule.on_store_failure == "closed" then
      closed[#closed + 1] = rule.name
    end
    enforces = enforces or rule.ask ~= nil
    local of_tiers = { rule.counters }
    for _, counters in pairs(rule.tiers or {}) do
      of_tiers[#of_tiers + 1] = counters
    end
    for _, counters in pairs(of_tiers) do
      for _, counter in ipairs(counters) do
        enforces = enforces or not counter.shadow
        counter.form = ngx.decode_base64(counter.form)
      end
    end
  end
  return {
    document = document, candidates = match.candidates(document.rules), closed = closed, enforces = enforces,
    ip_key = addresses.keys(document.identity.ipv4_prefix, document.identity.ipv6_prefix),
  }
end

local function learn_secret(ruleset, settings)
  if ruleset.document.keys == "plain" then
    ruleset.text = ruleset.text or keys.texts(nil, ruleset.document.tag_dimensions)
    return
  end
  local found, err = store.secret(settings.redis)
  if found then
    if found ~= secret or not ruleset.text then
      ruleset.text = keys.texts(found, ruleset.document.tag_dimensions)
    end
    secret = found
  else
    if secret and not ruleset.text then
      ruleset.text = keys.texts(secret, ruleset.document.tag_dimensions)
    end
    ngx.log(ngx.WARN, "sluicegate: ", err)
  end
end

-- Bring rules and secret up to date; keeps what there is where that fails.
function M.pull(settings)
  local document, new_tag, err = server.ruleset(settings.server, tag, settings.pull_timeout_ms)
  if err then
    failed_at = ngx.now()
    ngx.log(ngx.WARN, "sluicegate: no new rules: ", err)
  elseif document then
    local ruleset = prepare(document)
    learn_secret(ruleset, settings)
    current, tag, failed_at = ruleset, new_tag, nil
    return
  end
  if current then
    learn_secret(current, settings)
  end
end

-- The rules; nil where there are none yet. Does not wait.
function M.known()
  return current
end

-- The rules; nil where there are none yet. May wait for them.
function M.current(settings)
  if not current and not (failed_at and ngx.now() - failed_at < RETRY_S) then
    M.pull(settings)
  end
  return current
end

return M
