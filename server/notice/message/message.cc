#include "server/notice/message/message.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/clean_text.h"
#include "common/estimate/state_title.h"
#include "common/record/json_number.h"
#include "nlohmann/json.hpp"
#include "server/decide/job_event.h"
#include "server/decide/lifecycle.h"
#include "server/decide/problem/problems.h"
#include "server/notice/message/describe.h"

namespace nsa::server {
namespace {

using Json = nlohmann::json;

constexpr size_t kLabelBytes = 256;
constexpr size_t kMostLabels = 64;

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json EventPart(const v1::JobEvent& event) {
  return {{"sequence", event.sequence()},
          {"time", absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::FromUnixNanos(event.unix_nanos()),
                                    absl::UTCTimeZone())},
          {"reason", ShownLine(event.reason())},
          {"severity", SeverityName(event.severity())},
          {"state", StateName(event.state())},
          {"text", CutText(CleanText(event.text()), kJsonTextBytes)},
          {"generation", event.generation()},
          {"rank", event.rank() < 0 ? Json() : Json(event.rank())}};
}

// What to do about it; null for an event that says no problem.
Json ProblemPart(const Telling& telling) {
  const auto problem = ProblemOf(telling.event, telling.job->job());
  if (!problem.has_value()) return {};
  Json remedies = Json::array();
  for (const v1::Remedy& remedy : problem->remedies()) {
    remedies.push_back({{"text", remedy.text()}, {"command", remedy.command()}});
  }
  return {{"cause", problem->cause()},
          {"evidence", problem->evidence()},
          {"remedies", std::move(remedies)}};
}

Json JobPart(const v1::Job& job) {
  Json labels = Json::object();
  for (const auto& [key, value] : job.spec().labels()) {
    if (labels.size() == kMostLabels) break;
    labels[ShownLine(key)] = CutText(CleanLine(value), kLabelBytes);
  }
  const v1::JobProgress& progress = job.progress();
  const bool stepped = progress.step() > 0;
  return {{"id", job.id()},
          {"name", ShownLine(job.name())},
          {"owner", ShownLine(job.owner())},
          {"labels", std::move(labels)},
          {"state", StateName(job.state())},
          {"restarts", job.restarts()},
          {"step", progress.step()},
          {"total_steps", progress.total_steps()},
          {"loss", stepped ? record::JsonNumber<Json>(progress.loss()) : Json()},
          {"val_loss",
           progress.val_step() > 0 ? record::JsonNumber<Json>(progress.val_loss()) : Json()}};
}

// "; try: nsactl resume jk3…"; empty if the event says no problem.
std::string FirstRemedy(const Telling& telling) {
  const auto problem = ProblemOf(telling.event, telling.job->job());
  if (!problem.has_value() || problem->remedies().empty()) return "";
  return absl::StrCat("; try: ", SlackText(ShownLine(problem->remedies(0).command())));
}

// "warning: <URL|demo> is restarting, RANK_CRASHED: text; try: nsactl logs jk3… --tail 20".
std::string SlackLine(const Telling& telling, const Teller& teller) {
  const v1::JobEvent& event = telling.event;
  const v1::Job& job = telling.job->job();
  const std::string name = SlackText(ShownLine(job.name()));
  const std::string link = JobLink(job, teller);
  const std::string shown = link.empty() ? name : absl::StrCat("<", link, "|", name, ">");
  const std::string text = SlackText(CutText(CleanLine(event.text()), kChatTextBytes));
  return absl::StrCat(
      event.severity() >= v1::SEVERITY_WARNING ? SeverityName(event.severity()) + ": " : "", shown,
      " is ", StateTitle(event.state()), ", ", SlackText(ShownLine(event.reason())),
      text.empty() ? "" : ": ", text, FirstRemedy(telling));
}

}  // namespace

std::string SlackText(std::string_view text) {
  std::string safe;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto before = static_cast<unsigned char>(i == 0 ? ' ' : text[i - 1]);
    if (text[i] == '&') {
      safe += "&amp;";
    } else if (text[i] == '<') {
      safe += "&lt;";
    } else if (text[i] == '>') {
      safe += "&gt;";
    } else if (text[i] == '@' && !absl::ascii_isalnum(before)) {
      safe += "@\u200b";  // a blank without width: Mattermost and Rocket.Chat look for @all
    } else {
      safe += text[i];
    }
  }
  return safe;
}

std::string JsonMessage(const Telling& telling, const Teller& teller) {
  const std::string link = JobLink(telling.job->job(), teller);
  Json message = {{"format_version", 1},
                  {"notice", teller.notice},
                  {"coordinator", ShownLine(teller.host)},
                  {"event", EventPart(telling.event)},
                  {"problem", ProblemPart(telling)},
                  {"job", JobPart(telling.job->job())},
                  {"url", link.empty() ? Json() : Json(link)}};
  if (telling.sample) message["sample"] = true;
  return Dump(message);
}

std::string SlackMessage(std::span<const Telling> tellings, const Teller& teller) {
  std::string text;
  for (const Telling& telling : tellings.first(std::min(tellings.size(), kMostTogether))) {
    absl::StrAppend(&text, text.empty() ? "" : "\n", SlackLine(telling, teller));
  }
  const Json message = {{"text", std::move(text)}};
  return Dump(message);
}

}  // namespace nsa::server
