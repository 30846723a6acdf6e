// What /metrics of nsa-worker serve shows, in the text format of Prometheus.
//
//   nsa_serve_requests_total{code}      completions and chats by the HTTP status of the answer;
//   499:
//                                       the client had gone before it was complete
//   nsa_serve_prompt_tokens_total       tokens of the prompts that were answered
//   nsa_serve_completion_tokens_total   tokens that were generated for them
//   nsa_serve_first_piece_seconds       from the arrival of a request to the first part of its text
//   nsa_serve_request_seconds           to its end
//   nsa_serve_token_seconds             from the first part to the end, for each further token
//   nsa_serve_waiting_requests          requests that wait for a slot
//   nsa_serve_used_slots                choices that are written at this moment
//   nsa_serve_slots                     those that can be
#pragma once

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "prometheus/counter.h"
#include "prometheus/gauge.h"
#include "prometheus/histogram.h"
#include "prometheus/registry.h"
#include "worker/train/serve/answer.h"
#include "worker/train/serve/model_thread.h"

namespace nsa::train::serve {

// Thread-safe.
class Metrics {
 public:
  static constexpr int kClientGone = 499;

  Metrics();

  // A request for completions has ended, `after` its arrival.
  void Ended(int status, absl::Duration after);
  void FirstPiece(absl::Duration after);
  // `writing`: from the first part of the answer to its end.
  void Answered(const Usage& usage, absl::Duration writing);

  std::string Text(const ModelThread::Load& load, int32_t slots) const;

 private:
  prometheus::Registry registry_;
  prometheus::Family<prometheus::Counter>& requests_;
  prometheus::Counter& prompt_tokens_;
  prometheus::Counter& completion_tokens_;
  prometheus::Histogram& first_piece_;
  prometheus::Histogram& seconds_;
  prometheus::Histogram& token_seconds_;
  prometheus::Gauge& waiting_;
  prometheus::Gauge& used_slots_;
  prometheus::Gauge& slots_;
};

}  // namespace nsa::train::serve
