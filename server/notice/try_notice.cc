#include "server/notice/try_notice.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <span>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/clean_text.h"
#include "common/base/host_name.h"
#include "common/job/did_you_mean.h"
#include "server/notice/courier.h"
#include "server/notice/notifier.h"

namespace nsa::server {
namespace {

absl::Status NoSuchNotice(const NoticeOptions& options, const std::string& name) {
  std::vector<std::string> names;
  for (const Notice& notice : options.notices) names.push_back(notice.name);
  const std::string nearest = Nearest(name, names);
  return absl::InvalidArgumentError(
      absl::StrCat("--test-notice: no notice is called '", CleanLine(CutText(name, 64)), "'; ",
                   !nearest.empty() ? absl::StrCat("did you mean '", nearest, "'?")
                   : names.empty()  ? "the configuration (--config) has none"
                                    : absl::StrCat("there are ", absl::StrJoin(names, ", "))));
}

Telling Sample(absl::Time now) {
  Telling telling{.sample = true};
  v1::JobEvent& event = telling.event;
  event.set_unix_nanos(absl::ToUnixNanos(now));
  event.set_reason("COMPLETED");
  event.set_text("This is a sample that nsa-coordinator --test-notice sent; there is no such job.");
  event.set_severity(v1::SEVERITY_INFO);
  event.set_state(v1::Job::STATE_SUCCEEDED);
  event.set_generation(1);
  event.set_rank(-1);
  const auto job = std::make_shared<v1::StoredJob>();
  job->mutable_job()->set_name("sample");
  job->mutable_job()->set_state(v1::Job::STATE_SUCCEEDED);
  telling.job = job;
  return telling;
}

}  // namespace

absl::StatusOr<std::string> TryNotice(const NoticeOptions& options, const std::string& name,
                                      const std::string& page_url, const Clock& clock) {
  const auto notice = std::ranges::find(options.notices, name, &Notice::name);
  if (notice == options.notices.end()) return NoSuchNotice(options, name);
  const std::atomic<bool> cancelled = false;
  Courier courier(*notice,
                  {.notice = name,
                   .host = HostName(),
                   .page_url = options.page_url.empty() ? page_url : options.page_url},
                  options.sendmail, cancelled, clock);
  const absl::Duration begin = clock.Monotonic();
  const Telling sample = Sample(clock.Wall());
  const Outcome outcome = courier.Send(std::span(&sample, 1));
  const std::string said = absl::StrCat(
      "notice ", name, ": ", notice->place, ": ", outcome.said, ", after ",
      absl::FormatDuration(absl::Trunc(clock.Monotonic() - begin, absl::Milliseconds(1))));
  switch (outcome.kind) {
    case Outcome::kDelivered:
      return said;
    case Outcome::kAgain:
      return absl::UnavailableError(
          absl::StrCat(said, "; not delivered, an event would be tried again"));
    default:
      return absl::FailedPreconditionError(
          absl::StrCat(said, "; refused, an event would not be tried again"));
  }
}

}  // namespace nsa::server
