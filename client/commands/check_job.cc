#include "client/commands/check_job.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/job/out_dir_number.h"

namespace nsa::client {

v1::PreflightReport CheckHere(v1::JobSpec spec) {
  ApplyDefaults(&spec);
  FillOutDirHere(&spec);
  return Preflight(spec, {.check_files = true});
}

absl::StatusOr<v1::PreflightReport> CheckThere(Session& session, const v1::JobSpec& spec) {
  NSA_ASSIGN_OR_RETURN(Client * client, session.client());
  v1::SubmitJobRequest request;
  *request.mutable_spec() = spec;
  request.set_validate_only(true);
  absl::StatusOr<v1::SubmitJobResponse> response = client->Call<v1::SubmitJobResponse>(request);
  if (NoAnswer(response.status())) {
    return WithMessage(response.status(),
                       absl::StrCat(response.status().message(), "; --offline checks without one"));
  }
  NSA_RETURN_IF_ERROR(response.status());
  return std::move(*response->mutable_report());
}

}  // namespace nsa::client
