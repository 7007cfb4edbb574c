"""Of the rules service."""

from __future__ import annotations

from typing import Final

__all__ = [
    "API_BODIES_PER_TOKEN_MAX",
    "API_BODY_BYTES_MAX",
    "API_BODY_BYTES_PER_S_MIN",
    "API_BODY_S_MAX",
    "API_CONNECTIONS_MAX",
    "API_HEAD_BYTES_MAX",
    "API_HEAD_S_MAX",
    "API_JSON_DEPTH_MAX",
    "API_POLLS_MAX",
    "API_REQUESTS_MAX",
    "AUDIT_DIFF_BYTES_MAX",
    "AUDIT_EXPORT_BATCH",
    "AUDIT_FAULTS_SHOWN",
    "CHANGES_PAGE_MAX",
    "CONTROL_CLOSE_S",
    "CONTROL_CONNECTIONS_MAX",
    "CONTROL_LOCK_WAIT_S",
    "CONTROL_NAME_CHARS_MAX",
    "CONTROL_POLL_S",
    "CONTROL_READY_S",
    "CONTROL_READ_S_MAX",
    "CONTROL_STATEMENT_S_MAX",
    "CONTROL_TEXT_CHARS_MAX",
    "FAILED_LOGINS_PER_MINUTE",
    "IMPORTS_AT_ONCE_MAX",
    "IMPORT_BATCH_LINES",
    "IMPORT_BYTES_MAX",
    "IMPORT_FAULTS_SHOWN",
    "IMPORT_LINE_BYTES_MAX",
    "IMPORT_REST_S",
    "IMPORT_STEP_ROWS_MAX",
    "IMPORT_STEP_ROWS_MIN",
    "IMPORT_STEP_US",
    "LIST_IPV4_PREFIX_MIN",
    "LIST_IPV6_PREFIX_MIN",
    "LOGIN_NOTE_ADDRESSES_MAX",
    "LOGIN_NOTE_S",
    "NODES_ASKED_AT_ONCE",
    "NODES_FLUSH_S",
    "NODES_MAX",
    "NODE_ANSWER_BYTES_MAX",
    "NODE_ASK_S",
    "NODE_COUNT_MAX",
    "NODE_FORGOTTEN_S",
    "NODE_LIVES_S",
    "NODE_NAME_HELD_S",
    "NODE_REPORT_BYTES_MAX",
    "PAGE_SIZE_MAX",
    "PAGE_TOKEN_CHARS_MAX",
    "PAUSES_MAX",
    "PENALTY_IPV4_PREFIX_MIN",
    "PENALTY_IPV6_PREFIX_MIN",
    "PENALTY_SLACK_S",
    "POLL_WAIT_S_MAX",
    "PUSH_TIMEOUT_S",
    "REPORT_BODY_BYTES_MAX",
    "REQUEST_ID_CHARS_MAX",
    "REVISIONS_REMEMBERED",
    "SAMPLES_KEPT_MAX",
    "SAMPLES_KEPT_US",
    "SAMPLES_PER_S",
    "TOKENS_MAX",
    "TOKEN_CHARS_MIN",
    "TOMBSTONES_KEPT",
    "WHATIF_AT_ONCE",
    "WHATIF_LINES_MAX",
    "WHATIF_LOG_BYTES_MAX",
    "WHATIF_S_MAX",
    "WRITES_PER_MINUTE",
]

# Rows of one page. A request for more gets this many.
PAGE_SIZE_MAX: Final = 500

# Characters of a page token or a cursor. Ours hold the key of one row, at most a few hundred characters.
PAGE_TOKEN_CHARS_MAX: Final = 4_096

# Characters of a reason or a note; and of a name of a source, a token, a namespace or a manager. They stand in the audit trail for good.
CONTROL_TEXT_CHARS_MAX: Final = 1_024
CONTROL_NAME_CHARS_MAX: Final = 128

# Connections of one service to its database. Changes come one after another; the others read.
CONTROL_CONNECTIONS_MAX: Final = 8

# Seconds a change waits for the one before it, and a statement may take. Changes are short, also the steps of a large import; what
# takes long of an import is to compare it with what is there, beside all changes.
CONTROL_LOCK_WAIT_S: Final = 60
CONTROL_STATEMENT_S_MAX: Final = 300

# Seconds a reading transaction may take, and the question whether the database answers. One that is frozen, or behind a broken network,
# says nothing at all; whoever asks meanwhile is told so. The longest pages take a second or two.
CONTROL_READ_S_MAX: Final = 30
CONTROL_READY_S: Final = 3

# Seconds a service that ends waits for its database to take what is in memory only, and again to part from it. None of that was acknowledged.
CONTROL_CLOSE_S: Final = 5

# Seconds between two looks at what other processes changed, and at what ends by itself. PostgreSQL tells of changes sooner.
CONTROL_POLL_S: Final = 1.0

# Bytes of the difference kept in one row of the audit trail. A larger one is told by its size; the versions hold all of it.
AUDIT_DIFF_BYTES_MAX: Final = 65_536

# Rows read at a time when the audit trail is walked, and faults that are told of it. One is enough not to trust it.
AUDIT_EXPORT_BATCH: Final = 1_000
AUDIT_FAULTS_SHOWN: Final = 20

# Entries of lists or subjects in one answer to a node: about a megabyte.
CHANGES_PAGE_MAX: Final = 20_000

# Removed entries that are remembered, so that a node that was away for a while is told of the difference only. One that was away
# longer asks for everything once.
TOMBSTONES_KEPT: Final = 100_000

# Lines of an import that are checked and staged at a time, and bytes of one line. The longest value has 256 bytes.
IMPORT_BATCH_LINES: Final = 20_000
IMPORT_LINE_BYTES_MAX: Final = 4_096

# Entries that one step of an import changes, and microseconds that it should take at most: every other change waits for that long, the
# kill switch among them. Steps begin small and grow where the machine is fast. Between two of them SQLite is left alone for the
# longest time (seconds) after which a waiting process looks again.
IMPORT_STEP_ROWS_MIN: Final = 5_000
IMPORT_STEP_ROWS_MAX: Final = 20_000
IMPORT_STEP_US: Final = 400_000
IMPORT_REST_S: Final = 0.1

# Imports that are at work at the same time, and removals of feeds; more wait. Each holds a connection for as long as its lines take to come.
IMPORTS_AT_ONCE_MAX: Final = 2

# Bad lines of an import that are told. An import with one is not taken.
IMPORT_FAULTS_SHOWN: Final = 20

# Pauses that hold at the same time: one per rule that is paused.
PAUSES_MAX: Final = 1_000

# Tokens that are neither revoked nor expired. Each person, pipeline and node may have its own.
TOKENS_MAX: Final = 10_000

# Characters of a first token that an operator chooses. Shorter ones can be guessed.
TOKEN_CHARS_MIN: Final = 16

# Seconds between two notes of wrong tokens in the audit trail, and addresses named in one. A flood of them does not fill the disk.
LOGIN_NOTE_S: Final = 60
LOGIN_NOTE_ADDRESSES_MAX: Final = 20

# Bits of the largest network that a penalty of a node may block. Clients that are counted by larger ones are no clients.
PENALTY_IPV4_PREFIX_MIN: Final = 16
PENALTY_IPV6_PREFIX_MIN: Final = 32

# Seconds that a reported penalty may last longer than its rule says: clocks differ.
PENALTY_SLACK_S: Final = 60

# Bits of the largest network that an entry of a list may hold without being forced: one that is larger is nearly always a slip, and
# blocks a country, or lets one in.
LIST_IPV4_PREFIX_MIN: Final = 8
LIST_IPV6_PREFIX_MIN: Final = 16

# Seconds after its last report for which the name of a node belongs to the token that it reported with: a dozen reports.
NODE_NAME_HELD_S: Final = 60

# Nodes that are known, and bytes of what is kept of a report. The oldest are forgotten, and those not heard of for a week (seconds):
# a node that is started again often has another name.
NODES_MAX: Final = 10_000
NODE_REPORT_BYTES_MAX: Final = 65_536
NODE_FORGOTTEN_S: Final = 604_800

# A count in a report of a node: more than any counts in a century, and sums of a thousand still have 64 bits.
NODE_COUNT_MAX: Final = 2**53

# Seconds between two writings of what nodes reported. In between it is in memory only, and comes again with the next report.
NODES_FLUSH_S: Final = 5

# Changes of which is remembered when they were made, to tell how long a node has been behind.
REVISIONS_REMEMBERED: Final = 1_000

# Bytes of a JSON body of the API: a rule set at its bound, written with more space than as YAML. An import has its own bound, as it
# is never held in memory: 4 million lines of 64 bytes. A report holds samples of requests besides what is kept of it.
API_BODY_BYTES_MAX: Final = 4_194_304
IMPORT_BYTES_MAX: Final = 268_435_456
REPORT_BODY_BYTES_MAX: Final = 2_097_152

# Levels of a JSON body. Rules have at most 16, within a rollout.
API_JSON_DEPTH_MAX: Final = 32

# Seconds without a byte of a body that is still to come, and for the head of a request. Slower clients are cut off.
API_BODY_S_MAX: Final = 30
API_HEAD_S_MAX: Final = 15

# Bytes per second that a body comes with, on average, after the first API_BODY_S_MAX seconds; and bodies of one token that are waited for at
# the same time. Who has any token could hold connections and memory with bodies that never end otherwise. A body that came whole with
# its head is not waited for.
API_BODY_BYTES_PER_S_MIN: Final = 1_024
API_BODIES_PER_TOKEN_MAX: Final = 64

# Bytes of the head of a request. Ours are a few hundred; browsers bring cookies.
API_HEAD_BYTES_MAX: Final = 32_768

# Connections of one listener, requests at work at the same time, and long polls that wait. A poll costs a few kilobytes; one too
# many is answered at once, a request too many with 503.
API_CONNECTIONS_MAX: Final = 16_384
API_REQUESTS_MAX: Final = 256
API_POLLS_MAX: Final = 10_000

# Seconds a long poll may ask to wait. Proxies give up after a minute.
POLL_WAIT_S_MAX: Final = 55

# Characters of a request id that is kept; it stands in the audit trail.
REQUEST_ID_CHARS_MAX: Final = 128

# Wrong tokens per minute and address before they are refused unseen, and changes per minute and token. A fleet of pipelines stays
# far below; a loop that has lost its way does not fill the audit trail.
FAILED_LOGINS_PER_MINUTE: Final = 10
WRITES_PER_MINUTE: Final = 120

# Seconds that telling Redis of a change may take. The change is kept already; its answer waits for this.
PUSH_TIMEOUT_S: Final = 1

# Rules service: how long it waits for a node that is asked about counters, in seconds: more than the deadline of the node's own store, and what a
# person still waits for. The database is written by nobody else meanwhile, where counters are changed.
NODE_ASK_S: Final = 2.0

# Rules service: a node that was not heard of for so many seconds, six of the usual intervals of reports, is not asked.
NODE_LIVES_S: Final = 30

# Rules service: nodes that are asked at the same time, each over a connection of its own.
NODES_ASKED_AT_ONCE: Final = 64

# Rules service: bytes of a node's answer about counters; a request that 1,000 rules apply to takes a third of it.
NODE_ANSWER_BYTES_MAX: Final = 1_048_576

# Rules service: bytes of a log that is sent to try rules on, as they come; what is larger is replayed by the command, where the log lies.
WHATIF_LOG_BYTES_MAX: Final = 67_108_864

# Rules service: lines that a sample of traffic becomes, each sample as often as it stands for requests; ten seconds of work.
WHATIF_LINES_MAX: Final = 2_000_000

# Rules service: trials at the same time, each in a process of its own with up to half a gigabyte; and how many seconds one may take.
WHATIF_AT_ONCE: Final = 2
WHATIF_S_MAX: Final = 60

# Rules service: sampled requests that are kept, over all nodes, and for how long. One takes a kilobyte, so this is 100 MB at worst; the oldest go first.
SAMPLES_KEPT_MAX: Final = 100_000
SAMPLES_KEPT_US: Final = 3_600_000_000

# Rules service: requests per second that each node is asked to tell of.
SAMPLES_PER_S: Final = 5.0
