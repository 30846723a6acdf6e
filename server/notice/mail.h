// Hands a mail to the machine's mail program.
#pragma once

#include <atomic>
#include <filesystem>
#include <string_view>

#include "absl/time/time.h"
#include "server/notice/outcome.h"

namespace nsa::server {

// Runs `program` -t -i with `message` as its standard input, in a session of its own, with no other
// descriptor and with a small part of the environment. Waits until it ends, at most `limit`: then,
// or when `cancelled` becomes true, it is killed together with what it started (5 s are enough, or
// it is left), and the outcome is kAgain. Of what it prints, the first 4 KiB are kept for the
// outcome. Safe in a process with threads of gRPC. SIGPIPE is not raised: nothing is a pipe.
Outcome SendMail(const std::filesystem::path& program, std::string_view message,
                 absl::Duration limit, const std::atomic<bool>& cancelled);

}  // namespace nsa::server
