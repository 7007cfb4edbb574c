-- Which rules apply to a request, and whose counters they charge. Nothing here waits.
--
-- `facts`: method, path (its normal form), host, ip, user, api_key, tenant, tier, headers; nil is not known.

local keys = require "sluicegate.keys"
local paths = require "sluicegate.paths"

local lower, upper = string.lower, string.upper
local pattern_of = paths.pattern_of
local EVERY_PATH = "/**"
local MEMO_MAX, MEMO_CHARS_MAX = 10000, 500 -- request lines whose rules are kept by a worker, and the longest; a full memo is emptied

local M = {}

function M.canonical_host(host)
  return (string.gsub(string.gsub(lower(host), ":%d*$", ""), "%.+$", ""))
end

local function holds_one(values, value)
  for _, each in ipairs(values) do
    if each == value then
      return true
    end
  end
  return false
end

local function host_holds(patterns, host)
  for _, pattern in ipairs(patterns) do
    local ending = string.sub(pattern, 1, 2) == "*." and string.sub(pattern, 2)
    if host == pattern or (ending and host and string.sub(host, -#ending) == ending) then
      return true
    end
  end
  return false
end

local function static_holds(match, facts)
  return (not match.methods or holds_one(match.methods, upper(facts.method)))
    and (not match.tier or holds_one(match.tier, facts.tier))
    and (not match.host or host_holds(match.host, facts.host))
end

local function entries_hold(entries, headers)
  for _, entry in ipairs(entries) do
    local value = headers[entry[1]]
    if value == nil or (entry[2] and value ~= entry[2]) then
      return false
    end
  end
  return true
end

local function guard_holds(match, facts)
  if match.user and not holds_one(match.user, facts.user) then
    return false
  end
  if match.tenant and not holds_one(match.tenant, facts.tenant) then
    return false
  end
  -- A request that comes by HTTP has neither a domain nor descriptors.
  if match.domain or match.descriptors or match.entries then
    return false
  end
  if match.authenticated ~= nil then
    local known = (facts.user or facts.api_key or facts.tenant) and true or false
    if known ~= match.authenticated then
      return false
    end
  end
  return not match.headers or entries_hold(match.headers, facts.headers)
end

local function block_holds(match, facts)
  return static_holds(match, facts)
    and (not match.path or pattern_of(match.path, facts.path) ~= nil)
    and guard_holds(match, facts)
    and not (match["not"] and block_holds(match["not"], facts))
end

local function learn_all(match)
  while match do
    paths.learn(match.path or {})
    match = match["not"]
  end
end

-- A function from facts to the rules whose static conditions hold: an array of { rule, pattern }, in order of evaluation.
function M.candidates(rules)
  for _, rule in ipairs(rules) do
    learn_all(rule.match)
  end
  local anywhere, near = paths.by_first_segment(rules)
  local memo, count = {}, 0
  local function look(facts)
    local found, here = {}, near[paths.first_segment(facts.path)] or {}
    local i, j = 1, 1
    while anywhere[i] or here[j] do
      local number
      if not here[j] or (anywhere[i] and anywhere[i] < here[j]) then
        number, i = anywhere[i], i + 1
      else
        number, j = here[j], j + 1
      end
      local rule = rules[number]
      local match = rule.match
      local pattern = match.path and pattern_of(match.path, facts.path) or (not match.path and EVERY_PATH)
      if pattern and static_holds(match, facts) then
        found[#found + 1] = { rule, pattern }
      end
    end
    return found
  end
  return function(facts)
    local line = table.concat({ facts.method, facts.host or "\0", facts.tier or "\0", facts.path }, "\n")
    local found = memo[line]
    if found then
      return found
    end
    found = look(facts)
    if #line > MEMO_CHARS_MAX then
      return found
    end
    if count >= MEMO_MAX then
      memo, count = {}, 0
    end
    memo[line], count = found, count + 1
    return found
  end
end

function M.applies(rule, facts)
  local match = rule.match
  return guard_holds(match, facts) and not (match["not"] and block_holds(match["not"], facts))
end

local function value_of(dimension, pattern, facts, methods)
  if dimension == "endpoint" or dimension == "method" then
    local name = upper(facts.method)
    name = methods[name] and name or "OTHER"
    return dimension == "method" and name or name .. " " .. pattern
  end
  local header = string.match(dimension, "^header%.(.*)$")
  if header then
    return facts.headers[lower(header)]
  end
  return facts[dimension]
end

-- The subject of a rule; nil where a dimension that it needs is not known. `document`: the rule set, its methods as a set.
function M.subject(rule, pattern, facts, document)
  local chars_max, methods = document.bounds.subject_chars, document.methods
  local parts = {}
  for _, dimension in ipairs(rule.per) do
    local name = string.sub(dimension, 1, 7) == "header." and lower(dimension) or dimension
    local part = keys.part(name, value_of(dimension, pattern, facts, methods), chars_max)
    if part and rule.first_of then
      return part
    elseif not part and not rule.first_of then
      parts = nil
      break
    end
    parts[#parts + 1] = part
  end
  if parts and (#parts > 0 or #rule.per == 0) then
    return #parts > 0 and table.concat(parts, "|") or "*"
  end
  return rule.on_missing == "ip" and keys.part("ip", facts.ip, chars_max) or nil
end

-- The tier a request counts as. `tiers` and `subjects` of the rule set.
function M.tier(facts, document)
  if #document.tiers.names == 0 and not document.tiers.default then
    return nil
  end
  local tier = facts.tier
  if not tier then
    for _, dimension in ipairs { "api_key", "user", "tenant" } do
      tier = facts[dimension] and document.subjects[dimension .. ":" .. facts[dimension]]
      if tier then
        break
      end
    end
  end
  return tier and holds_one(document.tiers.names, tier) and tier or document.tiers.default
end

return M
