#include "server/transition.h"

#include "common/status.h"

namespace nsa::server {
namespace {

// The gang of the last generation is a thing of the past.
void ForgetGang(v1::StoredJob* stored) {
  stored->set_restart_decided(false);
  stored->set_restart_delay_seconds(0);
  stored->set_gang_ending(false);
}

// What entering a state means for the rest of the stored job.
void Enter(State to, int64_t now, v1::StoredJob* stored) {
  v1::Job& job = *stored->mutable_job();
  stored->set_state_unix_nanos(now);
  job.clear_next_start_unix_nanos();
  if (to == v1::Job::STATE_QUEUED) {
    ForgetGang(stored);
    stored->clear_placements();
    stored->set_queued_unix_nanos(now);
  } else if (to == v1::Job::STATE_STARTING) {
    ForgetGang(stored);
    job.set_generation(job.generation() + 1);
    if (job.start_unix_nanos() == 0) job.set_start_unix_nanos(now);
    stored->set_progress_mark(ProgressMark(job));
  } else if (IsTerminal(to)) {
    ForgetGang(stored);
    stored->clear_placements();
    job.set_end_unix_nanos(now);
    job.mutable_progress()->set_eta_seconds(to == v1::Job::STATE_SUCCEEDED ? 0 : -1);
  }
}

}  // namespace

int64_t ProgressMark(const v1::Job& job) {
  const bool saves = job.spec().train().save_every() > 0;
  return saves ? job.progress().checkpoint_step() : job.progress().step();
}

absl::Status Apply(Happening happening, const Because& because, absl::Time now,
                   v1::StoredJob* stored, std::vector<v1::JobEvent>* events) {
  v1::Job& job = *stored->mutable_job();
  NSA_ASSIGN_OR_RETURN(const Transition row, Next(job.state(), happening));
  if (row.to != row.from) Enter(row.to, absl::ToUnixNanos(now), stored);
  if (happening == Happening::kRankLost) stored->set_gang_ending(true);
  job.set_state(row.to);
  job.set_reason(because.reason.empty() ? row.reason : because.reason);
  job.set_message(because.text);
  if (because.next_start != absl::InfinitePast()) {
    job.set_next_start_unix_nanos(absl::ToUnixNanos(because.next_start));
  }
  v1::JobEvent& event = events->emplace_back();
  event.set_reason(job.reason());
  event.set_text(because.text);
  event.set_severity(because.severity);
  event.set_rank(because.rank);
  return absl::OkStatus();
}

}  // namespace nsa::server
