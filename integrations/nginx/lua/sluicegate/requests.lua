-- What was decided of the requests in flight. An internal redirect (try_files, error_page, X-Accel-Redirect) takes a request to another
-- location and away from its context; here it is known by its connection and its number on it.

local IN_FLIGHT = 10000 -- requests that a worker remembers for certain; of those before them as many, at most, and then they are dropped

local M = {}

local new, old, count = {}, {}, 0

-- $request_id would be another one at each look, unless the configuration names it.
local function name()
  return ngx.var.connection .. ":" .. ngx.var.connection_requests
end

function M.keep(fields)
  if count >= IN_FLIGHT then
    new, old, count = {}, new, 0
  end
  new[name()], count = fields, count + 1
end

-- The fields of the decision; nil where none was taken.
function M.find()
  local request = name()
  return new[request] or old[request]
end

-- The answer is on its way: nothing more will be decided.
function M.drop()
  local request = name()
  if new[request] then
    new[request], count = nil, count - 1
  else
    old[request] = nil
  end
end

return M
