-- The server of the rules: the document they come in, and the decisions that only it can make. HTTP/1.1 on pooled connections.

local cjson = require "cjson.safe"

local FORMAT = 1
local FIELDS_MAX, BODY_BYTES_MAX = 100, 64 * 1024 * 1024
local POOL_IDLE_MS, POOL_SIZE = 60000, 32
-- Fields that tell how a message is framed or where it goes: those of a client's would be wrong in the question about it.
local OF_THE_MESSAGE = {
  ["connection"] = true, ["content-length"] = true, ["expect"] = true, ["host"] = true, ["keep-alive"] = true, ["te"] = true,
  ["trailer"] = true, ["transfer-encoding"] = true, ["upgrade"] = true,
}
-- Refusals of a question that is not well-formed or too large, as only what the client sent can make it.
local ITS_OWN = { [400] = true, [414] = true, [431] = true }

local M = {}

local function read_head(sock)
  local line, err = sock:receive("*l")
  if not line then
    return nil, err
  end
  local status = tonumber(string.match(line, "^HTTP/1%.%d (%d%d%d)"))
  if not status then
    return nil, "no answer of HTTP"
  end
  local fields = {}
  for _ = 1, FIELDS_MAX do
    line, err = sock:receive("*l")
    if not line then
      return nil, err
    elseif line == "" then
      return { status = status, fields = fields }
    end
    local name, value = string.match(line, "^([^:]+):%s*(.-)%s*$")
    if name then
      fields[string.lower(name)] = value
      fields[#fields + 1] = { name, value }
    end
  end
  return nil, "too many header fields"
end

local function exchange(sock, method, lines)
  local sent, err = sock:send(table.concat(lines, "\r\n") .. "\r\n\r\n")
  if not sent then
    return nil, err
  end
  local answer
  answer, err = read_head(sock)
  if not answer then
    return nil, err
  end
  local length = tonumber(answer.fields["content-length"] or 0)
  if not length or length > BODY_BYTES_MAX or answer.fields["transfer-encoding"] then
    return nil, "an answer without a length, or a large one"
  end
  answer.body = ""
  if length > 0 and method ~= "HEAD" and answer.status ~= 304 then
    answer.body, err = sock:receive(length)
  end
  return answer.body and answer or nil, err
end

-- The answer to one request without a body: status, fields (by lower-case name, and in order), body; or nil and an error.
function M.request(settings, method, target, fields, timeout_ms)
  local sock = ngx.socket.tcp()
  sock:settimeout(timeout_ms)
  local ok, err
  if settings.path then
    ok, err = sock:connect("unix:" .. settings.path)
  else
    ok, err = sock:connect(settings.host, settings.port, { pool_size = POOL_SIZE })
  end
  if not ok then
    return nil, err
  end
  local lines = { method .. " " .. target .. " HTTP/1.1" }
  for _, field in ipairs(fields) do
    lines[#lines + 1] = field[1] .. ": " .. field[2]
  end
  local answer
  answer, err = exchange(sock, method, lines)
  if not answer then
    sock:close()
    return nil, err
  end
  if answer.fields["connection"] == "close" then
    sock:close()
  else
    sock:setkeepalive(POOL_IDLE_MS, POOL_SIZE)
  end
  return answer
end

-- What is null is not there.
local function without_nulls(value)
  if type(value) == "table" then
    for name, each in pairs(value) do
      if each == cjson.null then
        value[name] = nil
      else
        without_nulls(each)
      end
    end
  end
  return value
end

-- The rule set's document out of its text; or nil and an error.
function M.document(text)
  local document, err = cjson.decode(text)
  if type(document) ~= "table" then
    return nil, err or "no document"
  elseif document.format ~= FORMAT then
    return nil, "this reads format " .. FORMAT .. ", not " .. tostring(document.format)
  end
  return without_nulls(document)
end

-- The text of the rule set's document, with its tag; nil where it is still the one with `tag`; nil, nil and an error where there is none.
function M.ruleset(settings, tag, timeout_ms)
  local fields = { { "Host", settings.name } }
  if settings.token then
    fields[#fields + 1] = { "Authorization", "Bearer " .. settings.token }
  end
  if tag and tag ~= "" then
    fields[#fields + 1] = { "If-None-Match", tag }
  end
  local answer, err = M.request(settings, "GET", "/v1/ruleset", fields, timeout_ms)
  if not answer then
    return nil, nil, err
  elseif answer.status == 304 then
    return nil
  elseif answer.status ~= 200 then
    return nil, nil, "status " .. answer.status
  end
  return answer.body, answer.fields["etag"]
end

-- The server's own decision of a request, by its door for nginx: the answer with `says`, the status that it means the client to have. Where that is nil
-- there was no decision. `facts` as in match.lua, with `remote`, the address in full.
function M.decide(settings, document, facts, timeout_ms)
  local fields = {
    { "Host", facts.host or settings.name }, { "X-Original-Method", facts.method }, { "X-Original-URI", facts.target },
  }
  if settings.token then
    fields[#fields + 1] = { "X-Sluicegate-Token", settings.token }
  end
  if facts.remote then
    local forwarded = document.identity.forwarded
    local value = forwarded == "forwarded" and 'for="[' .. facts.remote .. ']"' or facts.remote
    if forwarded == "forwarded" and not string.find(facts.remote, ":", 1, true) then
      value = "for=" .. facts.remote
    end
    fields[#fields + 1] = { forwarded, value }
  end
  for name, value in pairs(facts.headers) do
    if not OF_THE_MESSAGE[name] then
      fields[#fields + 1] = { name, value }
    end
  end
  local answer, err = M.request(settings, "GET", "/authz/nginx", fields, timeout_ms)
  if answer then
    local said = tonumber(answer.fields["x-sluicegate-status"])
    answer.says = answer.status == 200 and 200 or said or (ITS_OWN[answer.status] and answer.status)
  end
  return answer, err
end

return M
