#include "server/web/steer.h"

#include <algorithm>
#include <future>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/job_file.h"
#include "common/base/reason.h"
#include "common/base/status.h"
#include "common/checkpoint/checkpoint_dir.h"
#include "common/estimate/state_title.h"
#include "server/act/edit/edit_job.h"
#include "server/decide/lifecycle.h"
#include "server/web/clone.h"
#include "server/web/views.h"

namespace nsa::server {
namespace {

constexpr absl::Duration kDumpPatience = absl::Milliseconds(4'700);
constexpr std::chrono::seconds kPatience{6};

absl::StatusOr<int64_t> StepIn(const Json& body, const char* name) {
  const auto step = body.find(name);
  if (step == body.end() || !step->is_number_integer() || step->get<int64_t>() < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": not a step (at least 1); give its number"));
  }
  return step->get<int64_t>();
}

std::string TextIn(const Json& body, const char* name) {
  const auto text = body.find(name);
  return text == body.end() || !text->is_string() ? "" : text->get<std::string>();
}

absl::Status AddEvent(const Web::Parts& parts, const std::string& job_id, Reason reason,
                      std::string text) {
  v1::JobEvent event;
  event.set_reason(Word(reason));
  event.set_text(std::move(text));
  event.set_severity(v1::SEVERITY_INFO);
  event.set_rank(-1);
  return parts.store
      .Update(job_id,
              [&](v1::StoredJob* /*job*/, std::vector<v1::JobEvent>* events) {
                events->push_back(event);
                return absl::OkStatus();
              })
      .status();
}

absl::StatusOr<Json> Stop(const Web::Parts& parts, const std::string& job, const Json& body) {
  v1::StopJobRequest request;
  request.set_job(job);
  const std::string mode = TextIn(body, "mode");
  if (mode == "at_step") {
    NSA_ASSIGN_OR_RETURN(const int64_t step, StepIn(body, "at_step"));
    request.mutable_stop()->set_mode(v1::STOP_MODE_AT_STEP);
    request.mutable_stop()->set_at_step(step);
  } else if (mode == "graceful" || mode == "now") {
    request.mutable_stop()->set_mode(mode == "now" ? v1::STOP_MODE_NOW : v1::STOP_MODE_GRACEFUL);
  } else {
    return absl::InvalidArgumentError("mode: not one of graceful, now, at_step; choose one");
  }
  NSA_RETURN_IF_ERROR(parts.control.Stop(request, {}).status());
  parts.changed();
  return Json::object();
}

absl::StatusOr<Json> Resume(const Web::Parts& parts, const std::string& job, const Json& body) {
  v1::ResumeJobRequest request;
  request.set_job(job);
  request.set_request_id(TextIn(body, "request_id"));
  NSA_RETURN_IF_ERROR(parts.control.Resume(request, {}).status());
  parts.changed();
  return Json::object();
}

absl::StatusOr<Json> SaveStacks(const Web::Parts& parts, const std::string& job) {
  NSA_ASSIGN_OR_RETURN(const JobPtr stored, parts.store.Find(job));
  const v1::Job& now = stored->job();
  if (!HasGang(now.state()) || stored->restart_decided() || stored->placements().empty()) {
    return absl::FailedPreconditionError(absl::StrCat("state: job ", now.id(), " is ",
                                                      StateTitle(now),
                                                      " and has no processes; nothing to dump"));
  }
  const auto answer = std::make_shared<std::promise<std::vector<v1::StackDump>>>();
  auto ready = answer->get_future();
  NSA_RETURN_IF_ERROR(parts.dumps.TryRequest(
      now, {stored->placements().begin(), stored->placements().end()}, kDumpPatience,
      [answer](std::vector<v1::StackDump> dumps) { answer->set_value(std::move(dumps)); }));
  if (ready.wait_for(kPatience) != std::future_status::ready) {
    return absl::UnavailableError("stacks: no answer in time; try again");
  }
  NSA_ASSIGN_OR_RETURN(
      const StackStore::Saved saved,
      parts.stacks.Save(now.id(), now.generation(), "asked for on the page", ready.get()));
  NSA_RETURN_IF_ERROR(AddEvent(parts, now.id(), Reason::kStacksSaved,
                               absl::StrCat("asked for on the page; stacks saved as ", saved.id,
                                            " in ", saved.file.string())));
  return Json{{"id", saved.id}};
}

absl::Status PinIn(const std::string& out_dir, int64_t step, bool pinned) {
  NSA_ASSIGN_OR_RETURN(const auto entries, ListCheckpoints(out_dir));
  const auto found = std::ranges::find(entries, step, &CheckpointEntry::step);
  if (found == entries.end()) {
    return absl::NotFoundError(absl::StrCat("checkpoint: none of step ", step, " in ", out_dir));
  }
  if (JobFilesAreOver()) return absl::CancelledError("the caller no longer waits");
  return SetPinned(found->path, pinned);
}

absl::StatusOr<Json> Pin(const Web::Parts& parts, const std::string& job, const Json& body) {
  NSA_ASSIGN_OR_RETURN(const int64_t step, StepIn(body, "step"));
  const auto wanted = body.find("pinned");
  if (wanted == body.end() || !wanted->is_boolean()) {
    return absl::InvalidArgumentError("pinned: neither true nor false; choose one");
  }
  const bool pinned = wanted->get<bool>();
  NSA_ASSIGN_OR_RETURN(const JobPtr stored, parts.store.Find(job));
  NSA_ASSIGN_OR_RETURN(const JobFolder folder, parts.control.OutDir(job));
  NSA_RETURN_IF_ERROR(InFolder(parts, folder, [step, pinned](const std::string& out_dir) {
    return PinIn(out_dir, step, pinned);
  }));
  NSA_RETURN_IF_ERROR(AddEvent(parts, stored->job().id(),
                               pinned ? Reason::kCheckpointPinned : Reason::kCheckpointUnpinned,
                               absl::StrCat("checkpoint of step ", step,
                                            pinned ? " is kept whatever train.keep_checkpoints says"
                                                   : " is kept no longer")));
  return Json::object();
}

// {"text": …}
absl::StatusOr<Json> Note(const Web::Parts& parts, const std::string& job, const Json& body,
                          const std::string& who) {
  v1::EditJobRequest request;
  request.set_job(job);
  request.set_request_id(TextIn(body, "request_id"));
  request.set_note(TextIn(body, "text"));
  NSA_RETURN_IF_ERROR(EditJob(parts.store, request, who, "").status());
  return Json::object();
}

// The names in an array of the body; none if it is absent.
absl::Status NamesIn(const Json& body, const char* key,
                     google::protobuf::RepeatedPtrField<std::string>* names) {
  const Json array = body.value(key, Json::array());
  if (!array.is_array()) {
    return absl::InvalidArgumentError(absl::StrCat(key, ": not an array; give one of texts"));
  }
  for (const Json& name : array) {
    if (!name.is_string()) {
      return absl::InvalidArgumentError(absl::StrCat(key, ": not names; give texts"));
    }
    *names->Add() = name.get<std::string>();
  }
  return absl::OkStatus();
}

// {"set": {KEY: VALUE, …}, "remove": [KEY, …]}
absl::StatusOr<Json> Label(const Web::Parts& parts, const std::string& job, const Json& body,
                           const std::string& who) {
  v1::EditJobRequest request;
  request.set_job(job);
  request.set_request_id(TextIn(body, "request_id"));
  const Json set = body.value("set", Json::object());
  if (!set.is_object()) {
    return absl::InvalidArgumentError("set: not an object; give keys and values");
  }
  for (const auto& [key, value] : set.items()) {
    if (!value.is_string()) {
      return absl::InvalidArgumentError(absl::StrCat("set: ", key, " is no text; quote it"));
    }
    (*request.mutable_set_labels())[key] = value.get<std::string>();
  }
  NSA_RETURN_IF_ERROR(NamesIn(body, "remove", request.mutable_remove_labels()));
  NSA_RETURN_IF_ERROR(EditJob(parts.store, request, who, "").status());
  parts.changed();
  return Json::object();
}

// {"mute": [PROBLEM, …], "unmute": [PROBLEM, …]}
absl::StatusOr<Json> Mute(const Web::Parts& parts, const std::string& job, const Json& body,
                          const std::string& who) {
  v1::EditJobRequest request;
  request.set_job(job);
  request.set_request_id(TextIn(body, "request_id"));
  NSA_RETURN_IF_ERROR(NamesIn(body, "mute", request.mutable_mute()));
  NSA_RETURN_IF_ERROR(NamesIn(body, "unmute", request.mutable_unmute()));
  NSA_RETURN_IF_ERROR(EditJob(parts.store, request, who, "").status());
  parts.changed();
  return Json::object();
}

}  // namespace

absl::StatusOr<Json> Steer(const Web::Parts& parts, const std::string& job, const std::string& verb,
                           const std::string& body, const std::string& who) {
  NSA_ASSIGN_OR_RETURN(const Json json, ParseBody(body));
  if (verb == "stop") return Stop(parts, job, json);
  if (verb == "resume") return Resume(parts, job, json);
  if (verb == "stacks") return SaveStacks(parts, job);
  if (verb == "pin") return Pin(parts, job, json);
  if (verb == "note") return Note(parts, job, json, who);
  if (verb == "label") return Label(parts, job, json, who);
  if (verb == "mute") return Mute(parts, job, json, who);
  if (verb == "clone") return Clone(parts, job, json, who);
  return absl::NotFoundError(absl::StrCat("nothing to do named ", verb));
}

}  // namespace nsa::server
