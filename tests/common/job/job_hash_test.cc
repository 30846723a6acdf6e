#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <set>

#include "common/job/load.h"

namespace nsa {
namespace {

TEST(JobHash, IsTheSameOnEveryMachineAndInEveryVersion) {
  // This changes if a default of a hashed field changes; older checkpoints then belong to another
  // job.
  v1::JobSpec spec;
  EXPECT_EQ(JobHash(spec), "be5e8958468aea2356880d83315d98a8");
  // The defaults until 2026-11-22. Jobs are stored with their defaults, so such a job keeps its
  // hash.
  spec.mutable_nsa()->set_phi(v1::PHI_AVG);
  spec.mutable_nsa()->set_gate(v1::GATE_SOFTMAX);
  EXPECT_EQ(JobHash(spec), "71d6b4859f8ea8b791d81057e6d8855a");
}

TEST(JobHash, IsThatOfTheJobWithItsDefaults) {
  v1::JobSpec bare;
  v1::JobSpec full;
  ApplyDefaults(&full);
  EXPECT_EQ(JobHash(bare), JobHash(full));
  EXPECT_THAT(JobHash(bare), testing::MatchesRegex("[0-9a-f]{32}"));
}

TEST(JobHash, AKeyThatIsNewerThanCheckpointsCountsOnlyIfItDiffersFromItsDefault) {
  v1::JobSpec spec;
  spec.mutable_model()->set_activation(v1::ACTIVATION_SILU);
  spec.mutable_model()->set_qk_norm(false);
  spec.mutable_model()->set_norm_eps(1e-6);
  spec.mutable_model()->set_mlp_dim(0);
  spec.mutable_model()->set_mlp(v1::MLP_PLAIN);
  spec.mutable_model()->set_tie_embeddings(false);
  spec.mutable_model()->set_qkv_bias(false);
  spec.mutable_model()->set_qk_norm_weights(false);
  EXPECT_EQ(JobHash(spec), JobHash({}));
}

TEST(JobHash, IgnoresWhatAContinuedRunMayChange) {
  const std::function<void(v1::JobSpec*)> edits[] = {
      [](v1::JobSpec* s) { s->set_name("other"); },
      [](v1::JobSpec* s) { s->set_priority(3); },
      [](v1::JobSpec* s) { (*s->mutable_labels())["a"] = "b"; },
      [](v1::JobSpec* s) { s->mutable_train()->set_steps(7); },
      [](v1::JobSpec* s) { s->mutable_train()->set_log_every(7); },
      [](v1::JobSpec* s) { s->mutable_train()->set_eval_every(7); },
      [](v1::JobSpec* s) { s->mutable_train()->set_eval_batches(7); },
      [](v1::JobSpec* s) { s->mutable_train()->set_save_every(7); },
      [](v1::JobSpec* s) { s->mutable_train()->set_keep_checkpoints(7); },
      [](v1::JobSpec* s) { s->mutable_train()->set_out_dir("/other"); },
      [](v1::JobSpec* s) { s->mutable_nsa()->set_audit_every(7); },
      [](v1::JobSpec* s) { s->mutable_data()->set_loader_timeout_seconds(7); },
      [](v1::JobSpec* s) { s->mutable_data()->set_allow_synthetic_fallback(true); },
      [](v1::JobSpec* s) { s->mutable_runtime()->set_gradient_checkpointing(true); },
      [](v1::JobSpec* s) { s->mutable_resources()->set_gpus(4); },
      [](v1::JobSpec* s) { s->mutable_restart()->set_max_restarts(9); },
      [](v1::JobSpec* s) { s->mutable_guard()->set_after_steps(9); },
      [](v1::JobSpec* s) { s->mutable_guard()->set_hash_every(9); },
      [](v1::JobSpec* s) { s->mutable_guard()->set_stop_on_divergence(false); },
  };
  const std::string hash = JobHash({});
  for (size_t i = 0; i < std::size(edits); ++i) {
    v1::JobSpec spec;
    edits[i](&spec);
    EXPECT_EQ(JobHash(spec), hash) << "edit " << i;
  }
}

TEST(JobHash, ChangesWithEveryOtherFieldOfModelNsaDataAndTrain) {
  const std::string hash = JobHash({});
  v1::JobSpec defaults;
  ApplyDefaults(&defaults);
  const std::set<std::string> free = {"steps",
                                      "log_every",
                                      "eval_every",
                                      "save_every",
                                      "keep_checkpoints",
                                      "eval_batches",
                                      "out_dir",
                                      "checkpoint_url",
                                      "audit_every",
                                      "loader_timeout_seconds",
                                      "allow_synthetic_fallback"};
  int changed = 0;
  for (const char* section : {"model", "nsa", "data", "train"}) {
    const auto* section_field = v1::JobSpec::descriptor()->FindFieldByName(section);
    for (int i = 0; i < section_field->message_type()->field_count(); ++i) {
      const auto* f = section_field->message_type()->field(i);
      if (free.contains(f->name())) continue;
      v1::JobSpec spec = defaults;
      auto* message = spec.GetReflection()->MutableMessage(&spec, section_field);
      const auto& r = *message->GetReflection();
      if (f->is_repeated()) {
        if (f->cpp_type() == f->CPPTYPE_STRING) r.AddString(message, f, "/x");
        if (f->cpp_type() == f->CPPTYPE_DOUBLE) r.AddDouble(message, f, 0.5);
        if (f->cpp_type() == f->CPPTYPE_ENUM) r.AddEnumValue(message, f, 1);
        if (f->cpp_type() == f->CPPTYPE_MESSAGE) r.AddMessage(message, f);
      } else {
        switch (f->cpp_type()) {
          case google::protobuf::FieldDescriptor::CPPTYPE_INT32:
            r.SetInt32(message, f, r.GetInt32(*message, f) + 1);
            break;
          case google::protobuf::FieldDescriptor::CPPTYPE_INT64:
            r.SetInt64(message, f, r.GetInt64(*message, f) + 1);
            break;
          case google::protobuf::FieldDescriptor::CPPTYPE_DOUBLE:
            r.SetDouble(message, f, r.GetDouble(*message, f) + 0.001);
            break;
          case google::protobuf::FieldDescriptor::CPPTYPE_BOOL:
            r.SetBool(message, f, !r.GetBool(*message, f));
            break;
          case google::protobuf::FieldDescriptor::CPPTYPE_ENUM:
            r.SetEnumValue(message, f, r.GetEnumValue(*message, f) <= 1 ? 2 : 1);
            break;
          case google::protobuf::FieldDescriptor::CPPTYPE_MESSAGE:  // rope_scaling
            spec.mutable_model()->mutable_rope_scaling()->set_factor(2);
            break;
          default:
            r.SetString(message, f, "/x");
        }
      }
      EXPECT_NE(JobHash(spec), hash) << section << "." << f->name();
      ++changed;
    }
  }
  EXPECT_GE(changed, 30);
}

}  // namespace
}  // namespace nsa
