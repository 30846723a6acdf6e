#include "server/rpc/permission.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/job/enum_words.h"

namespace nsa::server {
namespace {

struct Row {
  const char* method;
  v1::Role least;  // the roles of people are ordered; agents are apart
};

constexpr Row kRows[] = {
    {"GetJob", v1::ROLE_VIEWER},
    {"ListJobs", v1::ROLE_VIEWER},
    {"WatchJob", v1::ROLE_VIEWER},
    {"WatchEvents", v1::ROLE_VIEWER},
    {"WatchRecords", v1::ROLE_VIEWER},
    {"StreamLogs", v1::ROLE_VIEWER},
    {"ListSavedStacks", v1::ROLE_VIEWER},
    {"GetSavedStacks", v1::ROLE_VIEWER},
    {"ListCheckpoints", v1::ROLE_VIEWER},
    {"ListNodes", v1::ROLE_VIEWER},
    {"GetVersion", v1::ROLE_VIEWER},
    {"SubmitJob", v1::ROLE_SUBMITTER},
    {"StopJob", v1::ROLE_SUBMITTER},
    {"ResumeJob", v1::ROLE_SUBMITTER},
    {"DeleteJob", v1::ROLE_SUBMITTER},
    {"EditJob", v1::ROLE_SUBMITTER},
    {"DumpStack", v1::ROLE_SUBMITTER},
    {"ProfileJob", v1::ROLE_SUBMITTER},
    {"VerifyCheckpoint", v1::ROLE_SUBMITTER},
    {"CordonNode", v1::ROLE_OPERATOR},
    {"UncordonNode", v1::ROLE_OPERATOR},
    {"CreateToken", v1::ROLE_OPERATOR},
    {"ListTokens", v1::ROLE_OPERATOR},
    {"RotateToken", v1::ROLE_OPERATOR},
    {"RevokeToken", v1::ROLE_OPERATOR},
    {"ListAudit", v1::ROLE_OPERATOR},
    {"Join", v1::ROLE_UNSPECIFIED},  // the join token is checked by the call itself
    {"Heartbeat", v1::ROLE_AGENT},
    {"ReportRecords", v1::ROLE_AGENT},
    {"ReportLog", v1::ROLE_AGENT},
    {"ReportDump", v1::ROLE_AGENT},
    {"ReportProfile", v1::ROLE_AGENT},
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

}  // namespace

absl::Status MayCall(const Caller& caller, std::string_view method) {
  const auto* const row =
      std::ranges::find_if(kRows, [&](const Row& known) { return method == known.method; });
  if (row != std::end(kRows) && Suffices(caller, row->least)) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat("authorization: ", std::string(method), " needs the role ",
                   row == std::end(kRows) ? "of nobody" : Word(row->least), " (", caller.name,
                   " has ", Word(caller.role), "); ask an operator for another token"));
}

}  // namespace nsa::server
