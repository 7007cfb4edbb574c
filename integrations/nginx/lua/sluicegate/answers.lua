-- What a decision is called to a client: header fields in the dialects of the rule set's document, and the body of a refusal.

local cjson = require "cjson.safe"

local ceil, max, min, format, gsub = math.ceil, math.max, math.min, string.format, string.gsub
local PROBLEM_TYPES = "https://iana.org/assignments/http-problem-types#"

local M = {}

local function seconds_up(us)
  return ceil(us / 1000000)
end

local function whole(number)
  return format("%.0f", number)
end

-- The decision that results come to: allowed, decisive (nil: no rule is enforced), wait_us (of a refusal; nil: for ever).
function M.summary(results)
  local allowed, wait, first, never = true, 0, nil, false
  for _, each in ipairs(results) do
    if not each.passes and not each.counter.shadow then
      allowed = false
      first = first or each
      never = never or not each.wait_us
      wait = max(wait, each.wait_us or 0)
    end
  end
  if not allowed then
    return { allowed = false, decisive = first, wait_us = not never and wait or nil, results = results }
  end
  local tightest
  for _, each in ipairs(results) do
    if each.passes and not each.counter.shadow and (not tightest or each.remaining < tightest.remaining) then
      tightest = each
    end
  end
  return { allowed = true, decisive = tightest, wait_us = tightest and tightest.wait_us, results = results }
end

-- Seconds from now that Reset tells; nil where the request can never pass.
local function delta_s(decision)
  if not decision.wait_us then
    return nil
  end
  local seconds = seconds_up(decision.wait_us)
  return decision.allowed and seconds or max(1, seconds)
end

local function x_fields(fields, decision, reset)
  local each = decision.decisive
  fields["X-RateLimit-Limit"] = whole(each.counter.limit)
  fields["X-RateLimit-Remaining"] = whole(each.remaining)
  fields["X-RateLimit-Reset"] = reset and whole(reset)
  fields["X-RateLimit-Policy"] = each.counter.texts.policy
end

local function ietf_limit(each, allowed, bounds)
  local name = each.counter.texts.ietf_name
  if not each.passes then
    return each.wait_us and format("%s;r=0;t=%.0f", name, max(1, seconds_up(each.wait_us))) or name .. ";r=0"
  elseif not allowed or each.counter.limit == 0 then
    return nil
  end
  local remaining = min(each.remaining, bounds.header_integer)
  local fair = ceil(remaining * each.counter.window_us / each.counter.limit)
  return format("%s;r=%.0f;t=%.0f", name, remaining, max(1, seconds_up(max(fair, each.wait_us))))
end

local writers = {}

writers["x-ratelimit"] = function(fields, decision)
  x_fields(fields, decision, delta_s(decision))
end

writers["x-ratelimit-epoch"] = function(fields, decision)
  local wait = decision.wait_us
  x_fields(fields, decision, wait and seconds_up(decision.results.now_us + wait))
end

writers["ietf"] = function(fields, decision, bounds)
  local policies, limits = {}, {}
  for _, each in ipairs(decision.results) do
    if not each.counter.shadow then
      policies[#policies + 1] = each.counter.texts.ietf_policy
      limits[#limits + 1] = ietf_limit(each, decision.allowed, bounds)
    end
  end
  fields["RateLimit"] = #limits > 0 and table.concat(limits, ", ") or nil
  fields["RateLimit-Policy"] = table.concat(policies, ", ")
end

writers["ietf-legacy"] = function(fields, decision)
  local policies = {}
  for _, each in ipairs(decision.results) do
    if not each.counter.shadow then
      policies[#policies + 1] = each.counter.texts.legacy_policy
    end
  end
  local reset = delta_s(decision)
  fields["RateLimit-Limit"] = whole(decision.decisive.counter.limit)
  fields["RateLimit-Remaining"] = whole(decision.decisive.remaining)
  fields["RateLimit-Reset"] = reset and whole(reset)
  fields["RateLimit-Policy"] = table.concat(policies, ", ")
end

writers["off"] = function() end

-- Header fields by name.
function M.fields(decision, document)
  local fields = {}
  if decision.decisive then
    for _, dialect in ipairs(document.headers) do
      writers[dialect](fields, decision, document.bounds)
    end
  end
  if not decision.allowed and decision.wait_us then
    fields["Retry-After"] = whole(delta_s(decision))
  end
  return fields
end

local function refusing(decision)
  local names, quoted = {}, {}
  for _, each in ipairs(decision.results) do
    if not each.passes and not each.counter.shadow then
      names[#names + 1] = each.counter.name
      quoted[#quoted + 1] = "'" .. each.counter.name .. "'"
    end
  end
  return names, table.concat(quoted, ", ")
end

-- A value as the other doors write it: cjson would write every slash as "\\/".
local function json(value)
  return (gsub(cjson.encode(value), "\\/", "/"))
end

-- A problem document (RFC 9457) of members in this order, which a table does not keep; a member that is nil is left out.
local function problem(kind, title, status, detail, retry_after_s, names)
  return format(
    '{"type":%s,"title":%s,"status":%d,"detail":%s%s%s}', json(PROBLEM_TYPES .. kind), json(title), status, json(detail),
    retry_after_s and format(',"retry-after":%.0f', retry_after_s) or "",
    names and format(',"violated-policies":%s', json(names)) or ""
  )
end

-- The body of a 429.
function M.quota_exceeded(decision)
  local names, named = refusing(decision)
  local detail = "This request can never pass: refused by " .. named .. "."
  local seconds = delta_s(decision)
  if seconds then
    detail = format("Refused by %s. Try again in %.0f s.", named, seconds)
  end
  return problem("quota-exceeded", "Quota Exceeded", 429, detail, seconds, names)
end

-- The body of a 503. `names`: of the rules that refuse; empty where it is nginx's own setting that does.
function M.out_of_reach(names)
  local detail = "The counters that decide this request are out of reach for the moment."
  return problem(
    "temporary-reduced-capacity", "Temporary Reduced Capacity", 503, detail, nil, #names > 0 and names or nil
  )
end

return M
