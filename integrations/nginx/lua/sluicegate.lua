-- A limiter inside nginx: decides on the counters that all other doors of sluicegate use, by the rules of its server.
--
--   init_by_lua_block         { require("sluicegate").setup { redis = { ... }, server = { ... } } }
--   init_worker_by_lua_block  { require("sluicegate").start() }
--   access_by_lua_block       { require("sluicegate").access() }
--   header_filter_by_lua_block { require("sluicegate").headers() }
--
-- What it cannot decide by itself (see `ask` in the rule set's document; paths with several readings; credentials) the server decides.
-- So does it while Redis cannot be reached. Where neither can be, rules that fail closed refuse, and for the others `on_failure` holds; but what is
-- written so that only the server can read it is refused then, or its spelling would be a way around every rule. A credential that the server cannot
-- verify is none: with `on_failure` open its request counts as one without.

local answers = require "sluicegate.answers"
local denials = require "sluicegate.denials"
local match = require "sluicegate.match"
local paths = require "sluicegate.paths"
local requests = require "sluicegate.requests"
local rules = require "sluicegate.rules"
local server = require "sluicegate.server"
local store = require "sluicegate.store"
local verdicts = require "sluicegate.verdicts"

local DOWN_S = 1 -- what failed is not tried again for so long
local ORDINARY = [[^[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?\z]]

local M = {}

local settings, dict

local function with_defaults(options, defaults)
  local merged = {}
  for name, value in pairs(defaults) do
    merged[name] = value
  end
  for name, value in pairs(options or {}) do
    merged[name] = value
  end
  return merged
end

-- Times are milliseconds, but for `poll_s`. `redis`: host, port or path; user, password, db, key_secret. `server`: host, port or path; token.
function M.setup(options)
  settings = with_defaults(options, {
    dict = "sluicegate", on_failure = "open", poll_s = 2, pull_timeout_ms = 1000, deny_cache_ms = 1000,
  })
  settings.redis = with_defaults(options.redis, { host = "127.0.0.1", port = 6379, timeout_ms = 50 })
  settings.server = with_defaults(options.server, { host = "127.0.0.1", port = 8081, timeout_ms = 100, name = "sluicegate" })
  if settings.on_failure ~= "open" and settings.on_failure ~= "closed" then
    error("sluicegate: on_failure: want open or closed, got " .. tostring(settings.on_failure))
  end
  dict = ngx.shared[settings.dict]
  if not dict then
    error("sluicegate: there is no lua_shared_dict " .. settings.dict)
  end
end

function M.start()
  local function pull(premature)
    if not premature then
      rules.pull(settings)
    end
  end
  assert(ngx.timer.at(0, pull))
  assert(ngx.timer.every(settings.poll_s, pull))
end

-- ---------------------------------------------------------------- answers

local function set_fields(fields)
  for name, value in pairs(fields) do
    ngx.header[name] = value
  end
end

local function is_down(name)
  local since = dict:get("down:" .. name)
  -- In the future it was before the clock was set back, and would be for as long as that.
  return since and math.abs(ngx.now() - since) <= DOWN_S
end

local function set_down(name)
  dict:set("down:" .. name, ngx.now(), DOWN_S)
end

local function keep(fields)
  ngx.ctx.sluicegate = fields
  requests.keep(fields)
end

local function pass(fields)
  keep(fields)
  -- An error page may be made by another location, to which the context does not come along.
  set_fields(fields)
end

local function refuse(status, fields, content_type, body)
  keep(fields)
  ngx.status = status
  ngx.header["Content-Type"] = content_type
  ngx.header["Content-Length"] = #body
  ngx.header["Cache-Control"] = "no-store"
  set_fields(fields)
  ngx.print(body)
  return ngx.exit(status)
end

local function refuse_unreached(names)
  return refuse(503, { ["Retry-After"] = "1" }, "application/problem+json", answers.out_of_reach(names))
end

-- Neither Redis nor the server. `charges` nil: whose rules they are is not known, so those of all count. `unread`: because of how the request is
-- written, which its client chooses.
local function fail(ruleset, charges, unread)
  local names = {}
  if charges then
    for _, charge in ipairs(charges) do
      if charge.rule.on_store_failure == "closed" and not charge.counter.shadow then
        names[#names + 1] = charge.counter.name
      end
    end
  elseif ruleset then
    names = ruleset.closed
  end
  if #names > 0 or settings.on_failure == "closed" or (unread and ruleset.enforces) then
    return refuse_unreached(names)
  end
  return pass {}
end

-- ---------------------------------------------------------------- the server's decision

local function rate_fields(document, answer)
  local wanted, fields = { ["retry-after"] = answer.says ~= 200 }, {}
  for _, name in ipairs(document.fields) do
    wanted[name] = true
  end
  for _, field in ipairs(answer.fields) do
    if wanted[string.lower(field[1])] then
      fields[field[1]] = field[2]
    end
  end
  return fields
end

-- The server's decision, carried out; false where there is none.
local function ask(ruleset, facts)
  if is_down("server") then
    return false
  end
  local answer, err = server.decide(settings.server, ruleset.document, facts, settings.server.timeout_ms)
  if not answer or not answer.says then
    set_down("server")
    ngx.log(ngx.ERR, "sluicegate: the server gave no decision: ", err or "status " .. answer.status)
    return false
  elseif answer.says == 200 then
    pass(rate_fields(ruleset.document, answer))
    return true
  end
  return refuse(answer.says, rate_fields(ruleset.document, answer), answer.fields["content-type"], answer.body)
end

-- ---------------------------------------------------------------- facts and charges

-- The fields that rules look at; whether they are ASCII; and whether there is no credential among them.
local function header_facts(document)
  local found, ascii, anonymous = {}, true, true
  if next(document.wanted) then
    local given = ngx.req.get_headers(0)
    for name in pairs(document.wanted) do
      local value = rawget(given, name)
      if type(value) == "table" then
        value = table.concat(value, ", ")
      elseif value == true then
        value = ""
      end
      ascii = ascii and not (value and string.find(value, "[\128-\255]"))
      found[name] = value
    end
  end
  for _, name in ipairs(document.identity.secrets) do
    anonymous = anonymous and not found[name]
  end
  return found, ascii, anonymous
end

-- What is known of the request, and whether that is all that the server would know. `given`: what nginx vouches for. Of it, `readable` is whether
-- that is all but for a credential, and `unread` whether its client has written it so.
local function facts_of(ruleset, given)
  local document = ruleset.document
  local headers, ascii, anonymous = header_facts(document)
  local identity, target = document.identity, ngx.var.request_uri
  local facts = {
    method = ngx.req.get_method(), headers = headers, target = string.find(target, "^[/*]") and target or "/" .. target,
    path = paths.normal_path(target, document.bounds.path_chars),
    ip = ruleset.ip_key(ngx.var.binary_remote_addr),
  }
  facts.remote = facts.ip and ngx.var.remote_addr
  -- That of the request line before that of the field, as nginx itself takes it and passes it on.
  local host = ngx.var.host
  facts.host = host and host ~= "" and match.canonical_host(host) or nil
  local ordinary = true
  for dimension, header in pairs(identity.stated) do
    local value = given and given[dimension]
    -- What is not printable is no identity, and could end the line of a header field.
    if value and value ~= "" and not string.find(value, "%c") then
      facts[dimension], headers[header] = value, value
      ordinary = ordinary and ngx.re.find(value, ORDINARY, "jo") ~= nil
    end
  end
  facts.unread = not ascii or facts.path == nil or (host and string.find(host, "[\128-\255]") ~= nil)
  facts.readable = ordinary and not facts.unread
  return facts, facts.readable and anonymous
end

-- The charges of a request; nil where a rule that may apply is one for the server.
local function known_charges(ruleset, facts)
  local document, charges = ruleset.document, {}
  facts.tier = match.tier(facts, document)
  for _, candidate in ipairs(ruleset.candidates(facts)) do
    local rule, pattern = candidate[1], candidate[2]
    if match.applies(rule, facts) then
      if rule.ask then
        return nil
      end
      local subject = match.subject(rule, pattern, facts, document)
      if not subject and rule.on_missing == "deny" then
        return nil
      end
      local counters = facts.tier and rule.tiers[facts.tier] or rule.counters
      for _, counter in ipairs(subject and counters or {}) do
        charges[#charges + 1] = {
          rule = rule, counter = counter, cost = rule.cost, key = counter.head .. ruleset.key_text(subject) .. counter.tail,
        }
      end
    end
  end
  return charges
end

-- The same; nil as well where the path is more than can be looked for, which its client chooses like a spelling.
local function charges_of(ruleset, facts)
  local sound, charges = pcall(known_charges, ruleset, facts)
  if sound then
    return charges
  elseif charges ~= paths.UNDECIDED then
    error(charges, 0)
  end
  facts.unread = true
  return nil
end

-- ---------------------------------------------------------------- deciding

local function results_of(document, charges)
  if is_down("redis") then
    return nil
  end
  local reply, err = store.decide(settings.redis, document.script, charges)
  if not reply then
    set_down("redis")
    ngx.log(ngx.ERR, "sluicegate: Redis gave no decision: ", err)
    return nil
  end
  local results
  results, err = verdicts.read(reply, charges, document.bounds)
  if not results then
    ngx.log(ngx.ERR, "sluicegate: Redis gave no decision: ", err)
  end
  return results
end

-- The decision of these charges, carried out; false where Redis gave none.
local function count(document, charges)
  if #charges == 0 then
    pass {}
    return true
  end
  local results = denials.find(dict, document, charges)
  local fresh = not results
  results = results or results_of(document, charges)
  if not results then
    return false
  end
  local decision = answers.summary(results)
  local fields = answers.fields(decision, document)
  if decision.allowed then
    pass(fields)
    return true
  end
  if fresh then
    denials.keep(dict, document, charges, decision, settings.deny_cache_ms)
  end
  return refuse(429, fields, "application/problem+json", answers.quota_exceeded(decision))
end

local function decide(given)
  local ruleset = rules.current(settings)
  if not ruleset then
    return fail(nil, nil)
  end
  local document = ruleset.document
  local facts, sure = facts_of(ruleset, given)
  local charges = sure and ruleset.key_text and charges_of(ruleset, facts)
  if charges and count(document, charges) or ask(ruleset, facts) then
    return
  end
  -- An unverified credential is none. Where rules fail closed that would be a way around those that count by credentials.
  if not sure and facts.readable and ruleset.key_text and settings.on_failure == "open" and #ruleset.closed == 0 then
    charges = charges_of(ruleset, facts)
    if charges and count(document, charges) then
      return
    end
  end
  return fail(ruleset, charges or nil, facts.unread)
end

-- In access_by_lua. Passes the request, or answers it. `given`: user, api_key, tenant, tier as nginx itself has verified them; those
-- count whose dimension the rules read from a header of a trusted peer (`identity: {user: {header: ...}}`).
function M.access(given)
  -- What is redirected inside is decided once, where it first comes to a place that limits.
  if ngx.is_subrequest or ngx.ctx.sluicegate or (ngx.req.is_internal() and requests.find()) then
    return
  end
  -- What nginx could not read to the end of its first line is refused as it is.
  if not ngx.var.request_uri then
    return
  end
  local sound, fault = xpcall(decide, debug.traceback, given)
  if not sound then
    ngx.log(ngx.ERR, "sluicegate: a fault: ", fault)
    return fail(rules.known(), nil)
  end
end

-- In header_filter_by_lua: the fields of the decision, in place of those that the backend sent.
function M.headers()
  if ngx.is_subrequest then
    return
  end
  local fields = ngx.ctx.sluicegate or requests.find()
  local ruleset = fields and rules.known()
  requests.drop()
  if ruleset then
    for _, name in ipairs(ruleset.document.fields) do
      ngx.header[name] = nil
    end
    set_fields(fields)
  end
end

return M
