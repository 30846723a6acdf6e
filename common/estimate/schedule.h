// The learning rate as a pure function of the step.
#pragma once

#include <cstdint>
#include <string>

#include "nsa/v1/job.pb.h"

namespace nsa {

// Steps at the end in which lr_schedule: wsd lowers the learning rate: train.decay_steps, or a
// fifth of train.steps, at least 1.
int64_t DecaySteps(const v1::TrainSpec& train);

// Learning rate of optimizer step `step`, 1-based, of `train.steps`. With W = warmup_steps it is
// lr · step / W for step ≤ W. It is lr at step max(W, 1), with wsd until steps − DecaySteps() too,
// and then decreases along the schedule to min_lr_ratio · lr, which it reaches exactly at the last
// step and keeps afterwards. With constant, or where W ≥ steps, it does not decrease.
double LearningRate(const v1::TrainSpec& train, int64_t step);

// The flags of `nsactl resume` with which a job that has done all its steps does as many again:
// "--set train.steps=600", and "--set restart.allow_new_schedule=true" if more steps make its
// learning rate jump.
std::string FlagsToTrainFurther(const v1::TrainSpec& train);

}  // namespace nsa
