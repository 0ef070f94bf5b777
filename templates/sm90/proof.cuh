// What a proof of a kernel on wgmma has C++ CuTe compute, beside the Config that the kernel is made of.

#pragma once

#include "promoted.cuh"

#include <cute/atom/mma_traits_sm90_gmma.hpp>

#include "../common/proof.cuh"
