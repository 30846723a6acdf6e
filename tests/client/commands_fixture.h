// The fixture of the tests of commands: two jobs of a fake coordinator, one running and one that
// failed two days ago.
#pragma once

#include <string>

#include "tests/client/nsactl_harness.h"

namespace nsa::client {

inline constexpr int64_t kNoon = 1795176000LL * 1'000'000'000;
inline constexpr int64_t kSecond = 1'000'000'000;

class CommandsTest : public NsactlTest {
 protected:
  CommandsTest() {
    state().jobs = {DemoJob()};
    v1::Job old = DemoJob();
    old.set_id("jold12345678a");
    old.set_name("old");
    old.set_state(v1::Job::STATE_FAILED);
    old.set_reason("CUDA_OOM");
    old.set_message("out of memory on rank 1");
    old.set_submit_unix_nanos(kNoon - 50 * 3600 * kSecond);
    state().jobs.push_back(old);
  }

  v1::JobEvent& AddEvent(int64_t sequence, const std::string& reason) {
    v1::JobEvent& event = state().events.emplace_back();
    event.set_sequence(sequence);
    event.set_job_id("jdemo1234567");
    event.set_unix_nanos(kNoon - 60 * kSecond);
    event.set_reason(reason);
    event.set_text("what happened");
    event.set_state(v1::Job::STATE_RUNNING);
    event.set_rank(-1);
    return event;
  }

  v1::WatchRecordsResponse& AddRecord(int64_t position) {
    v1::WatchRecordsResponse& record = state().records.emplace_back();
    record.set_position(position);
    record.set_generation(1);
    return record;
  }

  v1::StepRecord& AddStep(int64_t step) {
    v1::StepRecord& record = *AddRecord(step).mutable_record()->mutable_step();
    record.set_step(step);
    record.set_loss(2.5);
    record.set_learning_rate(3e-4);
    record.set_grad_norm(0.8125);
    record.set_tokens_per_second(12345);
    record.set_memory_allocated_bytes(312 << 20);
    record.mutable_times()->set_step_seconds(0.25);
    record.mutable_times()->set_data_seconds(0.0012);
    return record;
  }
};

}  // namespace nsa::client
