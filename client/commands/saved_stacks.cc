#include "client/commands/saved_stacks.h"

#include "absl/strings/str_cat.h"
#include "client/show/human.h"
#include "client/show/table.h"
#include "common/base/status.h"

namespace nsa::client {
namespace {

absl::StatusOr<ExitCode> ShowOne(Session& session, const std::string& job, int64_t id) {
  v1::GetSavedStacksRequest request;
  request.set_job(job);
  request.set_id(id);
  NSA_ASSIGN_OR_RETURN(Client * client, session.client());
  NSA_ASSIGN_OR_RETURN(const auto response, client->Call<v1::GetSavedStacksResponse>(request));
  if (session.structured()) {
    session.PrintDocument(response);
  } else {
    session.out() << "=== saved " << response.saved().id() << ", "
                  << Timestamp(response.saved().unix_nanos()) << ", generation "
                  << response.saved().generation() << "\n"
                  << response.text();
  }
  return ExitCode::kOk;
}

}  // namespace

absl::StatusOr<ExitCode> ShowSavedStacks(Session& session, const std::string& name, int64_t id) {
  NSA_ASSIGN_OR_RETURN(Client * client, session.client());
  NSA_ASSIGN_OR_RETURN(const v1::Job found, client->GetJob(name));
  const std::string& job = found.id();
  if (id != 0) return ShowOne(session, job, id);
  v1::ListSavedStacksRequest request;
  request.set_job(job);
  NSA_ASSIGN_OR_RETURN(const auto response, client->Call<v1::ListSavedStacksResponse>(request));
  if (session.structured()) {
    session.PrintDocument(response);
    return ExitCode::kOk;
  }
  if (response.saved().empty()) {
    session.Note(absl::StrCat("no saved stacks: job ", job,
                              " never stood still; without --saved they are taken now"));
    return ExitCode::kOk;
  }
  Table table({{"ID", true}, {"AGE", true}, {"GENERATION", true}, {"SIZE", true}, {"WHY"}});
  for (const v1::SavedStacks& saved : response.saved()) {
    table.Add({absl::StrCat(saved.id()), ShortAge(session.now(), saved.unix_nanos()),
               absl::StrCat(saved.generation()), HumanBytes(saved.bytes()), saved.why()});
  }
  session.PrintTable(table);
  session.out() << "\n";
  return ShowOne(session, job, response.saved().rbegin()->id());
}

}  // namespace nsa::client
