-- Paths: their normal form, and the patterns of rules that they match.

local find, lower, sub = ngx.re.find, string.lower, string.sub

-- Paths that every server reads in the same way. Others have several readings, which the rules' own server knows.
local PLAIN = [[^(?:/(?!\.\.?(?:/|\z))[A-Za-z0-9\-._~!$&'()*+,=:@]++)*/?\z]]

local M = {}

-- Raised where the expression of a pattern needs more than PCRE has (a path of a thousand segments): whether it matches is not known.
M.UNDECIDED = {}

-- The normal form of a request target; nil where this cannot tell.
function M.normal_path(target, chars_max)
  local query = string.find(target, "?", 1, true)
  local path = query and sub(target, 1, query - 1) or target
  if #path > chars_max or not find(path, PLAIN, "jo") then
    return nil
  end
  local form = lower(path)
  if sub(form, -1) == "/" then
    form = sub(form, 1, -2)
  end
  return form == "" and "/" or form
end

-- What a path starts with where the expression of a pattern matches it, and what stands in the expression behind that.
local function literal_start(regex)
  local at, chars = 2, {}
  while at <= #regex do
    local char = string.match(regex, "^\\(%W)", at) or string.match(regex, "^[%w/_!\"%%',:;<=>@`]", at)
    local behind = at + (sub(regex, at, at) == "\\" and 2 or 1)
    if not char or string.find(regex, "^[?*+{]", behind) then
      break
    end
    chars[#chars + 1], at = char, behind
  end
  return table.concat(chars), sub(regex, at)
end

-- The first segment with its slash; nothing for the root.
function M.first_segment(path)
  return path == "/" and "" or string.match(path, "^/[^/]*") or ""
end

-- What `pattern_of` and `by_first_segment` look at before the expression. `first`: the first segment of every path that matches, where all have the same.
function M.learn(patterns)
  for _, each in ipairs(patterns) do
    local start, rest = literal_start(each.regex)
    each.start, each.literal = start, rest == "\\z"
    if each.literal or (start ~= "" and sub(rest, 1, 4) == "(?:/") or string.find(start, "/", 2, true) then
      each.first = M.first_segment(start)
    end
  end
end

-- The first pattern that the path matches.
function M.pattern_of(patterns, path)
  local subject = path == "/" and "" or path
  for _, each in ipairs(patterns) do
    if each.literal then
      if subject == each.start then
        return each.pattern
      end
    elseif sub(subject, 1, #each.start) == each.start then
      local from, _, err = find(subject, each.regex, "jo")
      if from then
        return each.pattern
      elseif err then
        error(M.UNDECIDED)
      end
    end
  end
  return nil
end

-- Numbers of the rules, in order: those for paths anywhere, and those whose paths all begin with a segment, by that segment.
function M.by_first_segment(rules)
  local anywhere, near = {}, {}
  for number, rule in ipairs(rules) do
    local firsts, everywhere = {}, not rule.match.path
    for _, each in ipairs(rule.match.path or {}) do
      everywhere = everywhere or not each.first
      firsts[each.first or ""] = true
    end
    for first in pairs(everywhere and {} or firsts) do
      near[first] = near[first] or {}
      table.insert(near[first], number)
    end
    if everywhere then
      anywhere[#anywhere + 1] = number
    end
  end
  return anywhere, near
end

return M
