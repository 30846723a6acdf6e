#include "server/web/clone.h"

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/job/load.h"

namespace nsa::server {
namespace {

// Every error of the report that is not waived, one a line.
std::string Refusal(const v1::PreflightReport& report) {
  std::string text = "preflight refuses this job:";
  for (const v1::Finding& finding : report.findings()) {
    if (finding.severity() != v1::SEVERITY_ERROR || !finding.waived().empty()) continue;
    absl::StrAppend(&text, "\n", finding.field(), ": ", finding.problem(), "; ", finding.fix());
  }
  return text;
}

}  // namespace

absl::StatusOr<Json> Clone(const Web::Parts& parts, const std::string& job, const Json& body,
                           const std::string& who) {
  NSA_RETURN_IF_ERROR(parts.store.Find(job).status());
  const auto text = body.find("text");
  if (text == body.end() || !text->is_string()) {
    return absl::InvalidArgumentError("text: absent; give the new job file as YAML");
  }
  const auto id = body.find("request_id");
  v1::SubmitJobRequest request;
  if (id != body.end() && id->is_string()) request.set_request_id(id->get<std::string>());
  NSA_RETURN_IF_ERROR(
      LoadYamlText(text->get<std::string>(), "job.yaml", request.mutable_spec()).status());
  request.mutable_spec()->clear_sweep();
  const auto draining = [&parts] { return parts.draining.load(); };
  const Asker asker{.name = who, .own_jobs_only = false, .unix_user = ""};
  auto made = parts.control.Submit(request, draining, asker);
  if (!made.ok() && absl::IsInvalidArgument(made.status())) {
    // The error holds only what fits into the details of an RPC.
    request.set_validate_only(true);
    const auto checked = parts.control.Submit(request, draining, asker);
    if (checked.ok() && !checked->report().accepted()) {
      return absl::InvalidArgumentError(Refusal(checked->report()));
    }
  }
  NSA_RETURN_IF_ERROR(made.status());
  parts.changed();
  return Json{{"id", made->job().id()}};
}

}  // namespace nsa::server
