// Advice on long runs: batch, learning rate and decay beside what others have published for the
// same size and length. Notes only: they refuse nothing.
#include <algorithm>
#include <array>
#include <cmath>

#include "absl/strings/str_format.h"
#include "common/base/count.h"
#include "common/estimate/estimate.h"
#include "common/estimate/optimizer_traits.h"
#include "common/preflight/advice.h"
#include "common/preflight/rules.h"

namespace nsa {
namespace {

// A value is worth a note when it is this many times smaller or larger than the published one.
// Learning rates within a factor of two of the best cost 0.03 to 0.1 nats (docs/quality.md).
constexpr double kFar = 4;

bool IsFar(double value, double usual) { return value * kFar < usual || value > usual * kFar; }

// What is published is for weights that begin at random. A job that goes on with the weights of
// another model is tuned with a tenth to a hundredth of the rate, on few tokens (docs/tune.md).
bool BeginsAtRandom(const PreflightFacts& facts) { return !facts.spec.restart().has_init(); }

bool IsFarRate(const PreflightFacts& facts, double rate, double usual) {
  return BeginsAtRandom(facts) ? IsFar(rate, usual) : rate > usual * kFar;
}

double TokensPerParameter(const PreflightFacts& facts) {
  return TokensOfRun(facts) / static_cast<double>(ParameterCount(facts.spec));
}

// Peak learning rates of AdamW by the number of parameters: GPT-3, arXiv 2005.14165, Table 2.1.
struct PublishedLr {
  double parameters;
  double lr;
};
constexpr std::array<PublishedLr, 8> kPublished = {{{125e6, 6.0e-4},
                                                    {350e6, 3.0e-4},
                                                    {760e6, 2.5e-4},
                                                    {1.3e9, 2.0e-4},
                                                    {2.7e9, 1.6e-4},
                                                    {6.7e9, 1.2e-4},
                                                    {13e9, 1.0e-4},
                                                    {175e9, 0.6e-4}}};

Problems LrAdvice(const PreflightFacts& facts) {
  const v1::TrainSpec& train = facts.spec.train();
  const int64_t parameters = ParameterCount(facts.spec);
  if (parameters < kSmallestAdvisedModel) return {};
  Problems problems;
  if (const double usual = UsualLr(static_cast<double>(parameters));
      IsFarRate(facts, train.lr(), usual)) {
    problems.push_back(
        {"train.lr",
         absl::StrFormat("%g (about %.1e is usual for %.0f million parameters: GPT-3, arXiv "
                         "2005.14165, table 2.1)",
                         train.lr(), usual, static_cast<double>(parameters) / 1e6),
         absl::StrFormat("try lr: %.1e in a short run", usual)});
  }
  if (!TraitsOf(train).whole_matrices) return problems;
  const double muon_lr = train.has_muon_lr() ? train.muon_lr() : train.lr();
  if (IsFarRate(facts, muon_lr, kUsualMuonLr)) {
    problems.push_back({"train.muon_lr",
                        absl::StrFormat("%g (3e-3 to 5e-3 learned best with 77 million parameters: "
                                        "docs/quality.md)",
                                        muon_lr),
                        "try muon_lr: 4.0e-3 in a short run"});
  }
  return problems;
}

// The compute for which the batch below was fitted, in FLOPs, and ten times more, where its authors
// used it.
constexpr double kLeastCompute = 1e17;
constexpr double kMostCompute = 2e20;

// Tokens of a batch with which a given compute reaches the lowest loss: DeepSeek LLM, arXiv
// 2401.02954, equation 1.
double UsualBatch(double flops) { return 0.2920 * std::pow(flops, 0.3271); }

Problems BatchAdvice(const PreflightFacts& facts) {
  if (!BeginsAtRandom(facts)) return {};
  const double flops = FlopsPerToken(facts.spec) * TokensOfRun(facts);
  if (flops < kLeastCompute || flops > kMostCompute) return {};
  // The equation is for models that see many tokens; with fewer the steps would be too few.
  if (TokensPerParameter(facts) < 1) return {};
  const int64_t batch = TokensPerStep(facts.spec);
  const double usual = UsualBatch(flops);
  if (!IsFar(static_cast<double>(batch), usual)) return {};
  const double steps = std::max(1.0, std::round(TokensOfRun(facts) / usual));
  return {
      {"train.batch_size",
       absl::StrFormat("%s tokens a step (about %s are usual for %.1e FLOPs: DeepSeek LLM, "
                       "arXiv 2401.02954, equation 1)",
                       Grouped(batch), Grouped(static_cast<int64_t>(usual)), flops),
       absl::StrFormat("for the same number of tokens try about %s steps with a batch_size or "
                       "accumulate_grad_batches %.2g times as large",
                       Grouped(static_cast<int64_t>(steps)), usual / static_cast<double>(batch))}};
}

constexpr double kUsualWeightDecay = 0.1;

Problems DecayAdvice(const PreflightFacts& facts) {
  if (!BeginsAtRandom(facts)) return {};
  const v1::TrainSpec& train = facts.spec.train();
  Problems problems;
  if (IsFar(train.weight_decay(), kUsualWeightDecay)) {
    problems.push_back(
        {"train.weight_decay",
         absl::StrFormat("%g (0.1 is usual: GPT-3, arXiv 2005.14165, appendix B; Llama 2, arXiv "
                         "2307.09288)",
                         train.weight_decay()),
         "try weight_decay: 0.1 in a short run"});
  }
  const double tokens = TokensPerParameter(facts);
  const bool falls_to_zero = train.min_lr_ratio() < 0.01;
  if (tokens >= kManyTokensPerParameter && !falls_to_zero) {
    problems.push_back(
        {"train.min_lr_ratio",
         absl::StrFormat("%g (0 learns better from %.0f tokens a parameter on; this run has %.0f: "
                         "arXiv 2502.15938)",
                         train.min_lr_ratio(), kManyTokensPerParameter, tokens),
         "try lr_schedule: linear with min_lr_ratio: 0"});
  }
  return problems;
}

const PreflightRule kAdviceRules[] = {
    {"LR_ADVICE", "the learning rate is far from what is published for this size", kInfo, kOff,
     true, kSizes, LrAdvice},
    {"BATCH_ADVICE", "the batch is far from what is published for this compute", kInfo, kOff, true,
     kSizes, BatchAdvice},
    {"DECAY_ADVICE", "weight decay or the last learning rate is far from what is published", kInfo,
     kOff, true, kSizes, DecayAdvice},
};

}  // namespace

// Interpolated in logarithms; beyond the ends of the table it is the end's.
double UsualLr(double parameters) {
  if (parameters <= kPublished.front().parameters) return kPublished.front().lr;
  for (size_t i = 1; i < kPublished.size(); ++i) {
    const PublishedLr &a = kPublished[i - 1], &b = kPublished[i];
    if (parameters > b.parameters) continue;
    const double t = std::log(parameters / a.parameters) / std::log(b.parameters / a.parameters);
    return std::exp(std::log(a.lr) + t * std::log(b.lr / a.lr));
  }
  return kPublished.back().lr;
}

std::span<const PreflightRule> AdviceRules() { return kAdviceRules; }

}  // namespace nsa
