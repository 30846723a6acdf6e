// Server-sent events: what has changed, for a page that is open. The id of a message is the
// sequence of the newest job event before it, which is on disk. A page that was cut off sends it
// back and gets every later event; the curves it asks for by step. So a restart of the coordinator
// loses nothing.
#pragma once

#include <atomic>
#include <memory>

#include "server/watch/http.h"
#include "server/web/web.h"

namespace nsa::server {

// A stream occupies a thread of the HTTP server (96). Beyond this many, a stream sends what there
// is and ends, and the browser asks again two seconds later.
inline constexpr int kMostStreams = 48;

// ?job=ID: one job in full, else the list that the query chooses (selection.h) and the machines.
// ?after=SEQUENCE, or the header Last-Event-ID after a reconnection. ?changes=1: of a row or job
// that the stream has sent before only `id` and the members that have changed. Messages: `event` (a
// job event), `job`, `nodes`, `rows` (rows of the list that are new to it or have changed; at first
// those of active jobs), `list` (the ids of its rows in order, which of them fold, how many jobs
// match, counts by state), `verdict` (of the fleet). At most two of each in a second, and fewer
// when they are long.
HttpReply StreamReply(const Web::Parts& parts, const HttpRequest& request,
                      const std::shared_ptr<std::atomic<int>>& streams);

}  // namespace nsa::server
