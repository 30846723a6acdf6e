#include "server/options.h"

#include <limits>
#include <string>

#include "gmock/gmock.h"
#include "tests/testing/status_matchers.h"

namespace nsa::server {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Options, WithoutAConfigurationOnlyTheSocketTakesCalls) {
  const auto options = ResolveOptions({});
  ASSERT_OK(options);
  EXPECT_EQ(options->listen_address, "");
  EXPECT_EQ(options->metrics_address, "127.0.0.1:9464");
}

TEST(Options, AllowHttpsAndTheHubUnlessTheConfigurationSaysOtherwise) {
  EXPECT_THAT(ResolveOptions({})->allowed_urls, ElementsAre("https://", "hf://"));
  v1::CoordinatorConfig config;
  config.add_allowed_urls("none");
  EXPECT_THAT(ResolveOptions(config)->allowed_urls, ElementsAre("none"));
  config.set_allowed_urls(0, "ftp://example.com/");
  EXPECT_THAT(ResolveOptions(config), StatusIs(absl::StatusCode::kInvalidArgument,
                                               HasSubstr("allowed_urls: 'ftp://example.com/'")));
}

TEST(Options, RefuseWhatIsNoAddress) {
  v1::CoordinatorConfig listen;
  listen.set_listen_address("127.0.0.1:99999");
  EXPECT_THAT(ResolveOptions(listen).status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("listen_address: '127.0.0.1:99999' (HOST:PORT")));
  v1::CoordinatorConfig metrics;
  metrics.set_metrics_address("foo");
  EXPECT_THAT(
      ResolveOptions(metrics).status(),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("metrics_address: 'foo' (HOST:PORT")));
  v1::CoordinatorConfig none;
  none.set_metrics_address("");
  EXPECT_OK(ResolveOptions(none).status());
}

TEST(Options, RefuseAddressesThatOthersCanReach) {
  v1::CoordinatorConfig config;
  config.set_listen_address("0.0.0.0:50951");
  EXPECT_THAT(ResolveOptions(config).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("listen_address"), HasSubstr("token_file"))));
  config.mutable_tls()->set_certificate_file("c");
  config.mutable_tls()->set_private_key_file("k");
  config.mutable_tls()->set_client_ca_file("a");
  EXPECT_THAT(ResolveOptions(config).status(), StatusIs(absl::StatusCode::kFailedPrecondition))
      << "TLS without a token";
  config.set_token_file("t");
  EXPECT_OK(ResolveOptions(config).status());
  config.set_metrics_address("0.0.0.0:9464");
  EXPECT_OK(ResolveOptions(config).status()) << "over TLS, with a token";
  config.clear_token_file();
  config.set_listen_address("127.0.0.1:50951");
  EXPECT_THAT(ResolveOptions(config).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("metrics_address")));
}

TEST(Options, RefuseHalfATlsBlock) {
  const auto set = [](v1::TlsConfig* tls, int field, const std::string& value) {
    if (field == 0) tls->set_certificate_file(value);
    if (field == 1) tls->set_private_key_file(value);
    if (field == 2) tls->set_client_ca_file(value);
  };
  const char* names[] = {"tls.certificate_file", "tls.private_key_file", "tls.client_ca_file"};
  for (int some = 1; some < 7; ++some) {  // one bit for each file; 0 would be none and 7 all
    v1::CoordinatorConfig config;
    std::string missing;
    for (int field = 2; field >= 0; --field) {
      if ((some & 1 << field) != 0) {
        set(config.mutable_tls(), field, "pem");
      } else {
        missing = names[field];
      }
    }
    EXPECT_THAT(ResolveOptions(config).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(missing)))
        << config.tls().ShortDebugString();
  }
}

TEST(Options, KeepEndedJobsForNinetyDaysUnlessToldForHowLong) {
  v1::CoordinatorConfig config;
  EXPECT_EQ(ResolveOptions(config)->job_retention, absl::Hours(24 * 90));
  config.set_job_retention_days(0);
  EXPECT_EQ(ResolveOptions(config)->job_retention, absl::ZeroDuration()) << "for ever";
  config.set_job_retention_days(0.5);
  EXPECT_EQ(ResolveOptions(config)->job_retention, absl::Hours(12));
  for (const double days : {-1.0, 1e9, std::numeric_limits<double>::quiet_NaN()}) {
    config.set_job_retention_days(days);
    EXPECT_THAT(ResolveOptions(config).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("job_retention_days")));
  }
}

TEST(Options, QuotasAndTheDefaultLimitAreTakenAndChecked) {
  v1::CoordinatorConfig config;
  EXPECT_TRUE(ResolveOptions(config)->scheduling.quotas.empty());
  EXPECT_EQ(ResolveOptions(config)->default_hours, 0);
  EXPECT_TRUE(ResolveOptions(config)->layer_series);
  config.mutable_default_limits()->set_hours(24);
  config.set_layer_series(false);
  v1::QuotaConfig& quota = *config.add_quotas();
  quota.set_owner("ada");
  quota.set_jobs(3);
  const auto options = ResolveOptions(config);
  ASSERT_OK(options.status());
  EXPECT_EQ(options->default_hours, 24);
  EXPECT_FALSE(options->layer_series);
  EXPECT_EQ(options->scheduling.quotas.Of("ada")->jobs(), 3);
  for (const double hours : {0.0, -1.0, 87'601.0, std::numeric_limits<double>::quiet_NaN()}) {
    config.mutable_default_limits()->set_hours(hours);
    EXPECT_THAT(ResolveOptions(config).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("default_limits.hours")));
  }
  config.clear_default_limits();
  quota.set_jobs(-1);
  EXPECT_THAT(ResolveOptions(config).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("quotas[0].jobs")));
}

TEST(Options, NobodyGivesWayUnlessTheConfigurationSaysSo) {
  v1::CoordinatorConfig config;
  const SchedulingPolicy fresh = ResolveOptions(config)->scheduling;
  EXPECT_FALSE(fresh.preempt);
  EXPECT_EQ(fresh.preempt_after, absl::Seconds(600));
  EXPECT_EQ(fresh.fair_share_label, "");
  v1::SchedulingConfig& scheduling = *config.mutable_scheduling();
  scheduling.set_preempt(true);
  scheduling.set_fair_share_label("team");
  for (const double seconds : {0.0, 0.5, 86'400.0}) {
    scheduling.set_preempt_after_seconds(seconds);
    const auto options = ResolveOptions(config);
    ASSERT_OK(options.status());
    EXPECT_TRUE(options->scheduling.preempt);
    EXPECT_EQ(options->scheduling.preempt_after, absl::Seconds(seconds));
    EXPECT_EQ(options->scheduling.fair_share_label, "team");
  }
  for (const double seconds : {-1.0, 86'401.0, std::numeric_limits<double>::quiet_NaN()}) {
    scheduling.set_preempt_after_seconds(seconds);
    EXPECT_THAT(ResolveOptions(config).status(),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("scheduling.preempt_after_seconds: "),
                               HasSubstr("(from 0 to 86,400)"))));
  }
}

TEST(Options, RefuseTimesThatWouldKillHealthyJobs) {
  v1::CoordinatorConfig config;
  config.set_node_unknown_seconds(20);
  config.set_node_lost_seconds(15);
  EXPECT_THAT(ResolveOptions(config).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("node_lost_seconds: 15")));
}

}  // namespace
}  // namespace nsa::server
