#include "server/rpc/permission.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/job/enum_words.h"

namespace nsa::server {
namespace {

// Bytes of a request.
constexpr size_t kWords = 64 << 10;  // names and numbers
constexpr size_t kJob = 4 << 20;     // what gRPC takes
constexpr size_t kReport = 4 << 20;  // of an agent, in parts
constexpr size_t kStranger = 8 << 10;

struct Row {
  const char* method;
  v1::Role least;  // the roles of people are ordered; agents are apart
  size_t most_bytes = kWords;
  bool audited = false;
};

constexpr Row kRows[] = {
    {"GetJob", v1::ROLE_VIEWER},
    {"ListJobs", v1::ROLE_VIEWER},
    {"WatchJob", v1::ROLE_VIEWER},
    {"WatchEvents", v1::ROLE_VIEWER},
    {"WatchRecords", v1::ROLE_VIEWER},
    {"GetCurves", v1::ROLE_VIEWER},
    {"StreamLogs", v1::ROLE_VIEWER},
    {"ListSavedStacks", v1::ROLE_VIEWER},
    {"GetSavedStacks", v1::ROLE_VIEWER},
    {"ListCheckpoints", v1::ROLE_VIEWER},
    {"ListNodes", v1::ROLE_VIEWER},
    {"GetVersion", v1::ROLE_VIEWER},
    {"ListUse", v1::ROLE_VIEWER},
    {"SubmitJob", v1::ROLE_SUBMITTER, kJob, true},
    {"StopJob", v1::ROLE_SUBMITTER, kWords, true},
    {"ResumeJob", v1::ROLE_SUBMITTER, kJob, true},
    {"DeleteJob", v1::ROLE_SUBMITTER, kWords, true},
    {"EditJob", v1::ROLE_SUBMITTER, kWords, true},
    {"DumpStack", v1::ROLE_SUBMITTER},
    {"ProfileJob", v1::ROLE_SUBMITTER},
    {"VerifyCheckpoint", v1::ROLE_SUBMITTER},
    {"CordonNode", v1::ROLE_OPERATOR, kWords, true},
    {"UncordonNode", v1::ROLE_OPERATOR, kWords, true},
    {"CreateToken", v1::ROLE_OPERATOR, kWords, true},
    {"ListTokens", v1::ROLE_OPERATOR},
    {"RotateToken", v1::ROLE_OPERATOR, kWords, true},
    {"RevokeToken", v1::ROLE_OPERATOR, kWords, true},
    {"ListAudit", v1::ROLE_OPERATOR},
    // The join token is checked by the call itself.
    {"Join", v1::ROLE_UNSPECIFIED, kStranger, true},
    {"Heartbeat", v1::ROLE_AGENT, 2 * limits::kHeartbeatBytes},
    {"ReportRecords", v1::ROLE_AGENT, kReport},
    {"ReportLog", v1::ROLE_AGENT, kReport},
    {"ReportDump", v1::ROLE_AGENT, kReport},
    {"ReportProfile", v1::ROLE_AGENT, kReport},
};

std::string Word(v1::Role role) {
  const auto* const value =
      role == v1::ROLE_UNSPECIFIED ? nullptr : v1::Role_descriptor()->FindValueByNumber(role);
  return value == nullptr ? "none" : EnumWord(*value);
}

bool Suffices(const Caller& caller, v1::Role least) {
  if (least == v1::ROLE_UNSPECIFIED) return true;
  if (least == v1::ROLE_AGENT) return caller.role == v1::ROLE_AGENT || caller.local;
  return caller.role != v1::ROLE_AGENT && caller.role >= least;
}

// Null for a method that is in no row.
const Row* Find(std::string_view method) {
  const auto* const row =
      std::ranges::find_if(kRows, [&](const Row& known) { return method == known.method; });
  return row == std::end(kRows) ? nullptr : row;
}

}  // namespace

size_t RequestLimit(std::string_view method) {
  const Row* const row = Find(method);
  return row == nullptr ? 0 : row->most_bytes;
}

bool IsAudited(std::string_view method) {
  const Row* const row = Find(method);
  return row != nullptr && row->audited;
}

absl::Status MayCall(const Caller& caller, std::string_view method) {
  const Row* const row = Find(method);
  if (row != nullptr && Suffices(caller, row->least)) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat("authorization: ", std::string(method), " needs the role ",
                   row == nullptr ? "of nobody" : Word(row->least), " (", caller.name, " has ",
                   Word(caller.role), "); ask an operator for another token"));
}

}  // namespace nsa::server
