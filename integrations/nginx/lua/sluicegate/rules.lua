-- The rules in use by this worker, and how they are kept up to date.

local addresses = require "sluicegate.addresses"
local keys = require "sluicegate.keys"
local match = require "sluicegate.match"
local server = require "sluicegate.server"
local store = require "sluicegate.store"

local RETRY_S = 1 -- after a failure a request does not try again for so long

local M = {}

-- text, tag (as the server sent them), document, candidates (see match.lua), ip_key (see addresses.lua), key_text (of a subject in a key; nil while the secret is not known), closed (names of rules),
-- enforces (some rule is not in shadow)
local current
local secret, failed_at, unkept

-- What the server's door keeps for itself is no fact about a request.
local OF_THE_DOOR = { "x-original-method", "x-original-uri", "x-sluicegate-token" }

local function prepare(document)
  if document.keys ~= "plain" and document.keys ~= "digest" then
    error("the store's counters have no keys of their own (" .. tostring(document.keys) .. "), as this module needs them", 0)
  end
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
  for _, name in ipairs(OF_THE_DOOR) do
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
    ruleset.key_text = ruleset.key_text or keys.texts(nil, ruleset.document.tag_dimensions)
    return
  end
  local found, err = store.secret(settings.redis)
  if found then
    if found ~= secret or not ruleset.key_text then
      ruleset.key_text = keys.texts(found, ruleset.document.tag_dimensions)
    end
    secret = found
  else
    if secret and not ruleset.key_text then
      ruleset.key_text = keys.texts(secret, ruleset.document.tag_dimensions)
    end
    ngx.log(ngx.WARN, "sluicegate: ", err)
  end
end

-- Rules out of the server's text; or nil and an error.
local function read(text, tag)
  local document, err = server.document(text)
  if not document then
    return nil, err
  end
  local sound, ruleset = pcall(prepare, document)
  if not sound then
    return nil, "no document of rules: " .. ruleset
  end
  ruleset.text, ruleset.tag = text, tag
  return ruleset
end

-- The workers share a copy, with which one that starts while the server is away goes on: after a reload, or in place of one that broke down.
local function copy_name(settings)
  return table.concat({ "rules", settings.server.path or settings.server.host, settings.server.port }, ":")
end

local function share(settings)
  local dict, name = ngx.shared[settings.dict], copy_name(settings)
  local copy = current.tag .. "\n" .. current.text
  if dict:get(name) ~= copy then
    local kept, err = dict:set(name, copy)
    if not kept and not unkept then
      unkept = true
      ngx.log(ngx.WARN, "sluicegate: the rules are not kept for workers that start while the server is away: ", err)
    end
  end
end

local function shared(settings)
  local copy = ngx.shared[settings.dict]:get(copy_name(settings))
  local tag, text = string.match(copy or "", "^([^\n]*)\n(.*)$")
  return text and read(text, tag)
end

local function use(ruleset, settings)
  learn_secret(ruleset, settings)
  current = ruleset
end

-- Bring rules and secret up to date; keeps what there is where that fails.
function M.pull(settings)
  local text, tag, err = server.ruleset(settings.server, current and current.tag, settings.pull_timeout_ms)
  local ruleset
  if text then
    ruleset, err = read(text, tag or "")
  end
  if err then
    failed_at = ngx.now()
    ngx.log(ngx.WARN, "sluicegate: no new rules: GET /v1/ruleset: ", err)
  else
    failed_at = nil
  end
  if ruleset or current then
    use(ruleset or current, settings)
  end
  if current and not err then
    share(settings)
  end
end

-- The rules; nil where there are none yet. Does not wait.
function M.known()
  return current
end

-- The rules; nil where there are none yet. May wait for them.
function M.current(settings)
  if not current then
    local ruleset = shared(settings)
    if ruleset then
      use(ruleset, settings)
    elseif not (failed_at and math.abs(ngx.now() - failed_at) < RETRY_S) then
      M.pull(settings)
    end
  end
  return current
end

return M
