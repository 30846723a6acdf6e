#include "worker/train/serve/metrics.h"

#include <span>

#include "absl/strings/str_cat.h"
#include "prometheus/text_serializer.h"

namespace nsa::train::serve {
namespace {

prometheus::Counter& NewCounter(prometheus::Registry* registry, const char* name,
                                const char* help) {
  return prometheus::BuildCounter().Name(name).Help(help).Register(*registry).Add({});
}

prometheus::Histogram& NewHistogram(prometheus::Registry* registry, const char* name,
                                    const char* help, std::span<const double> seconds) {
  return prometheus::BuildHistogram().Name(name).Help(help).Register(*registry).Add(
      {}, prometheus::Histogram::BucketBoundaries(seconds.begin(), seconds.end()));
}

prometheus::Gauge& NewGauge(prometheus::Registry* registry, const char* name, const char* help) {
  return prometheus::BuildGauge().Name(name).Help(help).Register(*registry).Add({});
}

constexpr double kRequestSeconds[] = {0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100};
constexpr double kTokenSeconds[] = {0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3};

}  // namespace

Metrics::Metrics()
    : requests_(
          prometheus::BuildCounter()
              .Name("nsa_serve_requests_total")
              .Help("Requests for completions and chats by HTTP status; 499: the client had gone")
              .Register(registry_)),
      prompt_tokens_(NewCounter(&registry_, "nsa_serve_prompt_tokens_total",
                                "Tokens of the prompts that were answered")),
      completion_tokens_(NewCounter(&registry_, "nsa_serve_completion_tokens_total",
                                    "Tokens that were generated")),
      first_piece_(NewHistogram(&registry_, "nsa_serve_first_piece_seconds",
                                "From the arrival of a request to the first part of its text",
                                kRequestSeconds)),
      seconds_(NewHistogram(&registry_, "nsa_serve_request_seconds",
                            "From the arrival of a request to its end", kRequestSeconds)),
      token_seconds_(NewHistogram(&registry_, "nsa_serve_token_seconds",
                                  "Mean time of a token of an answer after its first part",
                                  kTokenSeconds)),
      waiting_(NewGauge(&registry_, "nsa_serve_waiting_requests", "Requests that wait for a slot")),
      used_slots_(
          NewGauge(&registry_, "nsa_serve_used_slots", "Choices that are written at this moment")),
      slots_(NewGauge(&registry_, "nsa_serve_slots",
                      "Choices that can be written at the same time")) {}

void Metrics::Ended(int status, absl::Duration after) {
  requests_.Add({{"code", absl::StrCat(status)}}).Increment();
  seconds_.Observe(absl::ToDoubleSeconds(after));
}

void Metrics::FirstPiece(absl::Duration after) {
  first_piece_.Observe(absl::ToDoubleSeconds(after));
}

void Metrics::Answered(const Usage& usage, absl::Duration writing) {
  if (usage.completion_tokens > 1) {
    token_seconds_.Observe(absl::ToDoubleSeconds(writing) /
                           static_cast<double>(usage.completion_tokens - 1));
  }
  prompt_tokens_.Increment(static_cast<double>(usage.prompt_tokens));
  completion_tokens_.Increment(static_cast<double>(usage.completion_tokens));
}

std::string Metrics::Text(const ModelThread::Load& load, int32_t slots) const {
  waiting_.Set(static_cast<double>(load.waiting));
  used_slots_.Set(load.used);
  slots_.Set(slots);
  return prometheus::TextSerializer().Serialize(registry_.Collect());
}

}  // namespace nsa::train::serve
