-- Refusals that need not be asked for again: kept in a shared dictionary until the request would pass, and for `ttl_ms_max` at most,
-- so that a refund, a reset or a raised limit is seen after that time.
--
-- A refusal that itself is counted (denied_counts) is never kept.

local cjson = require "cjson.safe"

local floor, max, min = math.floor, math.max, math.min
local CLOCK_STEP_S = 1 -- a refusal from so far in the future is from before the clock was set back; its lifetime would be wrong

local M = {}

local function name_of(document, charges)
  local parts = { "d:" .. document.digest }
  for i, charge in ipairs(charges) do
    parts[i + 1] = charge.key
  end
  return table.concat(parts, "\n")
end

-- The results of an earlier refusal of the same charges, their times as of now; nil where there is none.
function M.find(dict, document, charges)
  local text = dict:get(name_of(document, charges))
  local kept = text and cjson.decode(text)
  if not kept or kept.at - ngx.now() > CLOCK_STEP_S then
    return nil
  end
  local passed_us = max(0, floor((ngx.now() - kept.at) * 1000000))
  local results = { now_us = kept.now_us + passed_us }
  for i, charge in ipairs(charges) do
    local passes, remaining, wait = kept.passes[i], kept.remaining[i], kept.wait[i]
    results[i] = {
      counter = charge.counter, rule = charge.rule, passes = passes, remaining = remaining,
      wait_us = wait >= 0 and max(wait - passed_us, passes and 0 or 1) or nil,
    }
  end
  return results
end

function M.keep(dict, document, charges, decision, ttl_ms_max)
  local kept = { at = ngx.now(), now_us = decision.results.now_us, passes = {}, remaining = {}, wait = {} }
  for i, each in ipairs(decision.results) do
    if each.counter.denied_counts and not each.counter.shadow then
      return
    end
    kept.passes[i], kept.remaining[i], kept.wait[i] = each.passes, each.remaining, each.wait_us or -1
  end
  local ttl_ms = decision.wait_us and min(floor(decision.wait_us / 1000), ttl_ms_max) or ttl_ms_max
  if ttl_ms >= 1 then
    dict:set(name_of(document, charges), cjson.encode(kept), ttl_ms / 1000)
  end
end

return M
